"""Documents as token ids, and batches of them."""
