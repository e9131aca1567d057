"""Longformer: the declaration with its attention module, and the packed encoder."""
