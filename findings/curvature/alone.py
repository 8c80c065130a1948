"""Federations one after another, of any network and method.

Each is that of `findings.truth.federation`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedbary.settings.config import resolve
from findings.truth.federation import Federation


class Alone:
    """Several federations between two rounds.

    Parameters
    ----------
    words
        The settings that all have, and so their splits and seeds.
    steps
        Those in which they differ.
    """

    def __init__(self, words: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> None:
        self.federations = [Federation(resolve({**words, **own})) for own in steps]
        self.federation = self.federations[0]

    def take_round(self) -> None:
        """Let every federation take a round."""
        for each in self.federations:
            each.take_round()

    def logits(self, x: Tensor) -> Tensor:
        """Return log-probabilities (M, N, classes) of inputs."""
        probs = torch.stack([each.predicted(x).probs for each in self.federations])
        return probs.clamp_min(torch.finfo(probs.dtype).tiny).log()
