"""A client of BA-BFL: variational inference on its share of the data set, as fedbary does it."""

from fedbary.client_app import app

__all__ = ["app"]
