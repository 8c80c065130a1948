"""Normalisation of images by statistics of each channel that the sites compute together."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from fedbary.data.batches import inputs
from fedbary.data.standardise import Standardiser, Sums

AT_ONCE = 1000
"""Images whose pixels are summed at a time, so that few are float64."""


@dataclass(frozen=True)
class Normaliser:
    """Takes each channel to mean 0 and variance 1 over the pixels of all training images.

    Attributes
    ----------
    mean, std : tuple of float
        Mean and standard deviation of each channel's pixels in [0, 1]. A constant channel's std is
        1.
    projection : tuple of float
        Projection of C standardised features on K components, (C, K) in one row; empty: none.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    projection: tuple[float, ...] = ()

    @classmethod
    def from_sums(cls, sums: Sums) -> Self:
        """Return the one of channels with those sums over pixels."""
        scale = Standardiser.from_sums(sums)
        return cls(tuple(scale.mean.tolist()), tuple(scale.std.tolist()))

    @classmethod
    def from_facts(cls, facts: Mapping[str, Tensor]) -> Self:
        """Return the one that `facts` describes."""
        return cls(**{name: tuple(held.tolist()) for name, held in facts.items()})

    def facts(self) -> dict[str, Tensor]:
        """Return `mean` and `std`, (C,), and `projection`, if there is one, float64 each."""
        held = {name: values for name, values in vars(self).items() if values}
        return {name: torch.tensor(values, dtype=torch.float64) for name, values in held.items()}

    def __call__(self, x: Tensor) -> Tensor:
        """Return (x − mean)/std of images (N, C, H, W), uint8 of [0, 255] or floats, in float32.

        Features (N, C) are standardised by column, and projected.
        """
        mean, std = (
            x.new_tensor(held, dtype=torch.float32).view(-1, *[1] * (x.ndim - 2))
            for held in (self.mean, self.std)
        )
        found = (inputs(x) - mean).div_(std)
        if not self.projection:
            return found
        return found @ x.new_tensor(self.projection).view(len(self.mean), -1)


def pixel_sums(x: Tensor, shift: Tensor) -> Sums:
    """Return the sums over the pixels of images (N, C, H, W) of each channel less a shift (C,).

    For features (N, C) they are the sums of each column.
    """
    parts = (inputs(part).movedim(1, -1).reshape(-1, x.shape[1]) for part in x.split(AT_ONCE))
    return functools.reduce(operator.add, (Sums.of(part.cpu(), shift) for part in parts))
