"""Grids that stand before another: replies counted, read one by one, or replaced by an attack."""
