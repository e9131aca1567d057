"""Trained models in use: predictions, metrics, explanations and embeddings."""
