"""Which nodes take part, what they hold, and what they are asked."""
