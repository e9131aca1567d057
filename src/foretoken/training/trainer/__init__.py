"""The Trainer as every run uses it, and what it watches."""
