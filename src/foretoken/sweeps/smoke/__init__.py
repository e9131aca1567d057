"""A sweep in small: every variant and every searched value on a tiny model, to see that the file runs."""
