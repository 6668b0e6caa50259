"""What commands write for people to read: tables as values, and the pages that are made of them."""
