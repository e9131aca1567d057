"""The built-in tasks, and their table."""
