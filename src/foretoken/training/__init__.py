"""Recipes, the one training path, and inference with what it wrote."""
