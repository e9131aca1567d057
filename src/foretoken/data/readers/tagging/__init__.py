"""Readers of tagged words: tag schemes, sentences in files and tables, and texts with spans."""
