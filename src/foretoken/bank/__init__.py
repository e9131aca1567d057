"""Many adapters on one frozen model, and batches in which every document has its own."""
