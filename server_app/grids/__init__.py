"""Grids around another: they count replies, read them one by one, or replace them by an attack."""
