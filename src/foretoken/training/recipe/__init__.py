"""The recipe: read from YAML, checked whole, everything a run depends on."""
