"""The tasks of SuperGLUE (Wang et al. 2019)."""
