"""A multilayer perceptron with one hidden layer of ReLUs, of inputs that are flattened."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from fedbary.parts.parameters import BelowOne, Checked, Units

LAYERS = ("hidden", "output")


@dataclass(frozen=True)
class Parameters(Checked):
    """Parameters of the network.

    Parameters
    ----------
    hidden_units
        Units of the hidden layer.
    dropout
        Probability that training drops an input of the last layer.
    """

    hidden_units: Units = 50
    dropout: BelowOne = 0.0


def make(shape: Sequence[int], outputs: int, parameters: Parameters) -> nn.Sequential:
    """Return the network for inputs of any shape."""
    units = parameters.hidden_units
    layers = OrderedDict[str, nn.Module](
        flatten=nn.Flatten(), hidden=nn.Linear(math.prod(shape), units), relu=nn.ReLU()
    )
    if parameters.dropout:
        layers["dropout"] = nn.Dropout(parameters.dropout)
    layers["output"] = nn.Linear(units, outputs)
    return nn.Sequential(layers)
