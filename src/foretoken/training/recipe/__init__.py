"""The recipe: everything a run depends on, read from YAML and checked as a whole."""
