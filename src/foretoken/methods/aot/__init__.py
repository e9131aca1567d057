"""Ahead-of-time P-tuning: its config, its modules, and the fused table."""
