"""A project as `flwr new` makes one, on the digits."""
