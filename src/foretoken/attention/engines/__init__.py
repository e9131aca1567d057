"""Engines: each computes one kind of attention, for one kind of mask."""
