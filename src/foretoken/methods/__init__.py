"""The methods, each in a file or folder of its own, and the table of all methods."""
