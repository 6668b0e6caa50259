"""Pages that commands make from stored rows: the reproduction in Markdown, the report in HTML."""
