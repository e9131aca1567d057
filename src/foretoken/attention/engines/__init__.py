"""Engines: each computes the attention of one kind of mask. :mod:`foretoken.attention.engines.table` lists them."""
