"""Scores of predictions, and tests of differences between scores."""
