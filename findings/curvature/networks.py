"""A small network with convolutions."""

import math
from collections.abc import Sequence

from torch import nn


def narrow(shape: Sequence[int], outputs: int) -> nn.Sequential:
    """Return two convolutions of stride 2, each with group norm, and a linear layer.

    It takes images (C, H, W).
    """
    channels, *sides = shape
    features = 16 * math.prod(math.ceil(side / 4) for side in sides)
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3, stride=2, padding=1), nn.GroupNorm(2, 8), nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.GroupNorm(4, 16), nn.ReLU(),
        nn.Flatten(), nn.Linear(features, outputs),
    )  # fmt: skip
