"""One run: from a recipe to a folder with the adapter, its record and its predictions."""
