"""A run's settings: their types, the parts' own parameters, and those that a run uses."""
