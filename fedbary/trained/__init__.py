"""Use of a finished run: load its model, predict, score, refer cases to a person."""

from fedbary.trained.loading import load
from fedbary.trained.run import Trained

__all__ = ["Trained", "load"]
