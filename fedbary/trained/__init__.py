"""What is done with a run that has ended: load its model, predict, score, ask a person."""

from fedbary.trained.run import Trained, load

__all__ = ["Trained", "load"]
