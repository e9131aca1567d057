"""The methods: one file or folder for each, and the table of them all."""
