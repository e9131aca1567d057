"""Sweeps: many runs from one file, selected by validation; their state is in the folders of the runs."""
