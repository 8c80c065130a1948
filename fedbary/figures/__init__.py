"""Pictures: each function returns a matplotlib Figure, which writes itself by ``savefig``."""
