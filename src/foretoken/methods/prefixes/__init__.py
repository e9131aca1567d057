"""The methods that train a prefix."""
