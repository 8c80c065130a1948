"""Predictions of one network whose dropout is kept (Gal and Ghahramani 2016)."""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn

from fedbary.predictive.networks import Answers, device_of, evaluation
from fedbary.variational.noise import seeded

LAYERS = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)


def answering(model: nn.Module, samples: int, generator: Generator) -> Answers:
    """Return what passes with dropout answer to a batch: logits (samples, batch, classes).

    Dropout layers act at the rates of training; all else is in evaluation mode. Each image has
    masks of its own, so the answer for an image depends on its place in the batch. PyTorch's
    default generators keep their state.

    Parameters
    ----------
    model
        The network; its device is where the work is done.
    samples
        Number of passes, at least 1.
    generator
        Source of the masks, on the model's device.
    """
    device = device_of(model)

    def by_pass(batch: Tensor) -> Tensor:
        seed = int(torch.randint(2**62, (), generator=generator, device=device))
        with evaluation(model), seeded(seed, device):
            for part in model.modules():
                if isinstance(part, LAYERS):
                    part.training = True
            return torch.stack([model(batch) for _ in range(samples)])

    return by_pass
