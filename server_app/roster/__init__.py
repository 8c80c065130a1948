"""Nodes that take part, their data, and the questions to them."""
