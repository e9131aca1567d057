"""Saved adapters: loading, model cards, and conversion from and to peft's own formats."""
