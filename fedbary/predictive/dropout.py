"""Predictions of one network whose dropout is kept (Gal and Ghahramani 2016)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Generator, Tensor, nn

from fedbary.predictive.networks import Answers, batches, device_of, evaluation
from fedbary.variational.noise import seeded

LAYERS = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)


@torch.inference_mode()
def answers(
    model: nn.Module, x: Tensor, samples: int, generator: Generator, batch_size: int = 500
) -> Iterator[Tensor]:
    """Yield for each batch the logits (samples, batch, classes) of passes with dropout.

    Dropout layers act at the rates of training, all else is in evaluation mode. Each image has
    masks of its own, so its answer depends on its place in the batch. PyTorch's default generators
    keep their state.

    Parameters
    ----------
    model
        The network; its device does the work.
    x
        Images (N, C, H, W), uint8 in 0…255 or float.
    samples
        Number of passes, at least 1.
    generator
        Source of the masks, on the model's device.
    batch_size
        Images at a time.
    """
    yield from map(answering(model, samples, generator), batches(model, x, batch_size))


def answering(model: nn.Module, samples: int, generator: Generator) -> Answers:
    """Return the answers of passes with dropout to a batch; see `answers`."""
    device = device_of(model)

    def by_pass(batch: Tensor) -> Tensor:
        seed = int(torch.randint(2**62, (), generator=generator, device=device))
        with evaluation(model), seeded(seed, device):
            for part in model.modules():
                if isinstance(part, LAYERS):
                    part.training = True
            return torch.stack([model(batch) for _ in range(samples)])

    return by_pass
