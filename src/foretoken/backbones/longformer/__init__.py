"""Longformer: the declaration, its attention module, and both over documents without padding."""
