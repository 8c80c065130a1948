"""The report of an experiment, from its table alone."""
