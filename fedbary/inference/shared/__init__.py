"""Helpers of many local methods."""
