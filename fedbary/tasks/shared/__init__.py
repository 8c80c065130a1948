"""What many tasks import."""
