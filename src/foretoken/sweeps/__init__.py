"""Sweeps: many runs from one file, selected by validation, whose state is in the folders of the runs."""
