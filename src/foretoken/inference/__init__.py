"""What training wrote, at work: predictions, metrics, and what a prefix does in the attention."""
