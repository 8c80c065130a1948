"""Families of a generalised linear model: a row's likelihood by the outputs of a linear layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

Nll = Callable[[Tensor, Tensor], Tensor]
"""Takes outputs (n, outputs) and targets, and returns the mean negative log-likelihood in nats."""


@dataclass(frozen=True)
class Family:
    """A family.

    Parameters
    ----------
    nll : callable
        See `Nll`; convex in the outputs.
    link : str
        Meaning of exp of a coefficient: a ratio of odds, rates, hazards. identity: a difference.
    classes : bool
        True: targets are classes 0, 1, … by their places, and the first class has output 0. False:
        targets are (n, 2), a number and its offset.
    """

    nll: Nll
    link: Literal["odds", "rate", "hazard", "identity"]
    classes: bool


def with_first(outputs: Tensor) -> Tensor:
    """Return the logits of all classes (n, K): the first class has 0."""
    return torch.cat([torch.zeros_like(outputs[:, :1]), outputs], 1)


def of_classes(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the mean of log Σ exp f − f_y; of two classes log(1 + exp f) − y f."""
    return functional.cross_entropy(with_first(outputs), y)


def of_counts(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the mean of exp(f + o) − y (f + o) + log y!, o the logarithm of the exposure."""
    count, offset = y.to(outputs).unbind(1)
    log_rate = outputs[:, 0] + offset
    return (log_rate.exp() - count * log_rate + torch.lgamma(count + 1)).mean()


def of_numbers(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the mean of ½ (y − f)², y and f in standard deviations of the noise."""
    number, std = y.to(outputs).unbind(1)
    return ((number - outputs[:, 0]) / std).square().mean() / 2


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "binomial": Family(of_classes, "odds", True),
        "multinomial": Family(of_classes, "odds", True),
        "poisson": Family(of_counts, "rate", False),
        "gaussian": Family(of_numbers, "identity", False),
    }
)
"""Each family by its name."""
