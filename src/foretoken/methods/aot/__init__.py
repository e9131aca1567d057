"""Ahead-of-time P-tuning: its config, its modules, the fused table, and the prefetching of its rows."""
