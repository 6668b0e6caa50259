"""The race: one untuned vSGD against the best of hundreds of tuned rivals."""
