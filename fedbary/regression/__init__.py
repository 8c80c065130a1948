"""Regression: networks, their training, Gaussian predictions, scores, and other methods."""
