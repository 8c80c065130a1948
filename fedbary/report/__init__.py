"""The reports: of a run, of a sweep, of runs beside each other."""
