"""A multilayer perceptron with one hidden layer of ReLUs, of inputs that are flattened."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from fedbary.parts.parameters import Checked, Units

LAYERS = ("hidden", "output")


@dataclass(frozen=True)
class Parameters(Checked):
    """Parameters of the network.

    Parameters
    ----------
    hidden_units
        Units of the hidden layer.
    """

    hidden_units: Units = 50


def make(shape: Sequence[int], outputs: int, parameters: Parameters) -> nn.Sequential:
    """Return the network for inputs of any shape."""
    units = parameters.hidden_units
    return nn.Sequential(
        OrderedDict(
            flatten=nn.Flatten(),
            hidden=nn.Linear(math.prod(shape), units),
            relu=nn.ReLU(),
            output=nn.Linear(units, outputs),
        )
    )
