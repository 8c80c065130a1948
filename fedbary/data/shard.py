"""A client's data."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Shard:
    """One client's inputs and targets: what it trains on, and what it holds out."""

    x: Tensor
    y: Tensor
    x_held_out: Tensor
    y_held_out: Tensor
