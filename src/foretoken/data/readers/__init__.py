"""Readers: files, folders and hub data sets, to rows and documents."""
