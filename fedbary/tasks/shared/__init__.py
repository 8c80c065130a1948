"""Values that many tasks import."""
