"""Predictions of one network whose dropout is kept (Gal and Ghahramani 2016)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedbary.predictive.networks import Answers, device_of, evaluation
from fedbary.predictive.predictor import Draws, Passes, Predictive
from fedbary.variational.layers import seeded

LAYERS = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)


@dataclass(frozen=True)
class Dropout(Passes):
    """Passes of one network with its dropout kept.

    Dropout layers act at the rates of training; all else is in evaluation mode. Each image has
    masks of its own, so the answer for an image depends on its place in the batch. PyTorch's
    default generators keep their state.
    """

    word = "dropout"

    def answering(self, model: nn.Module, held: Predictive, draws: Draws) -> Answers:
        """Return what passes with dropout answer to a batch."""
        device = device_of(model)

        def answer(batch: Tensor) -> Tensor:
            seed = int(torch.randint(2**62, (), generator=draws.generator, device=device))
            with evaluation(model), seeded(seed, device):
                for part in model.modules():
                    if isinstance(part, LAYERS):
                        part.training = True
                return torch.stack([model(batch) for _ in range(draws.samples)])

        return answer
