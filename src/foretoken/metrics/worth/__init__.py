"""Comparisons of two systems on the same rows: whether training is worth it."""
