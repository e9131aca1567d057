"""A task that needs no download: the documentation of installed packages, labelled by topic."""
