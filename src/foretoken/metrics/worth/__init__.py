"""Whether a trained model is worth it: two systems on the same rows, and what is said of them."""
