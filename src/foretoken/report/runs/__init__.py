"""The runs that a report reads, grouped and compared."""
