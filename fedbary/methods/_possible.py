"""Sums that examples can have: a scatter without negative eigenvalues, whole counts, a rank."""

from __future__ import annotations

import torch
from torch import Tensor

from fedbary.aggregation.covariance import unpacked

ROUNDING = 1e-4
"""The part of a matrix's mean eigenvalue that is put down to rounding."""


def scatter(triangle: Tensor, size: int, removed: Tensor) -> Tensor:
    """Return the mean products of (size) numbers without a part that is due to means.

    Raises
    ------
    ValueError
        If what is left has an eigenvalue below 0, beyond rounding: no examples have such sums.
    """
    whole = unpacked(triangle.double(), size)
    left = whole - removed
    ridge = _rounding(whole)
    if torch.linalg.cholesky_ex(left + ridge * torch.eye(size, dtype=left.dtype)).info != 0:
        raise ValueError("no examples have these sums and these products")
    return left


def require_rank(left: Tensor, whole: Tensor, rank: float) -> None:
    """Raise a ValueError if a scatter has a larger rank than its examples allow, beyond rounding.

    Parameters
    ----------
    left, whole : Tensor
        The scatter about means (size, size), and the mean products it is taken from.
    rank : float
        Examples less the means.
    """
    if rank >= len(left):
        return
    values = torch.linalg.eigvalsh(left)
    if values[len(values) - 1 - max(0, int(rank))] > _rounding(whole):
        raise ValueError(f"products of so few examples have no rank above {max(0, int(rank))}")


def require_counts(shares: Tensor, examples: float) -> None:
    """Raise a ValueError if shares of so many examples are no whole numbers, beyond rounding."""
    counts = shares.double() * examples
    if float((counts - counts.round()).abs().max()) > 1e-3 + 2e-7 * examples:
        raise ValueError(f"the classes' counts of {examples:g} examples are no whole numbers")


def _rounding(whole: Tensor) -> float:
    return ROUNDING * float(whole.diagonal().mean().clamp_min(1e-30))
