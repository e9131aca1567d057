"""Saved adapters: read and written, from peft's own formats and to them."""
