"""What is done with a run that has ended: load its model, predict, score, ask a person."""

from fedbary.trained.loading import load
from fedbary.trained.run import Trained

__all__ = ["Trained", "load"]
