"""Grids of runs: read from a file, run resumably, gathered in one table."""
