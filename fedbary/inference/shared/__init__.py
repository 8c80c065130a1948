"""What many local methods import."""
