"""Grids around another grid: they count, read one by one, or replace its replies."""
