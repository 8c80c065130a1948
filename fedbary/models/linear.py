"""A linear model of inputs that are flattened: logistic regression, where outputs are logits."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

LAYERS = ("output",)


@dataclass(frozen=True)
class Parameters:
    """The model has no parameters."""


def make(shape: Sequence[int], outputs: int, parameters: Parameters) -> nn.Sequential:
    """Return the model for inputs of any shape."""
    output = nn.Linear(math.prod(shape), outputs)
    return nn.Sequential(OrderedDict(flatten=nn.Flatten(), output=output))
