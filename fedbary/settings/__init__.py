"""What a run's settings may be: their types, the parts' own parameters, what a run uses."""
