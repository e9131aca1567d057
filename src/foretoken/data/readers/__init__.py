"""Readers of files, folders and hub data sets."""
