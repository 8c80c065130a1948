"""Predictions by a vote of the networks: the part of them whose first class each is."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import one_hot

from fedbary.predictive.predictor import Adjust, Members, Prediction, Predictive, as_it_is, mixture


@dataclass(frozen=True)
class Vote(Members):
    """The members' votes, each smoothed by one vote for all classes together."""

    word = "vote"
    numbers = False

    def joined(self, logits: Tensor, held: Predictive, adjusted: Adjust = as_it_is) -> Prediction:
        """Return (votes + 1/C)/(K + 1) for C classes and K networks."""
        networks, _, classes = logits.shape
        votes = one_hot(adjusted(logits).argmax(-1), classes).sum(0)
        return mixture(((votes + 1 / classes) / (networks + 1)).log()[None])
