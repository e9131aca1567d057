"""What adapters add to one attention: score columns, and the text apart from the prefix."""
