"""The built-in tasks: one file each, and the one table of them."""
