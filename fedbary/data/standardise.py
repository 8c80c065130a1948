"""Standardisation from sums that add over clients, so that no client shows a row.

The server sends all clients a shift. Each client sends the sums of its columns' deviations from it,
and of their squares. Shift 0 gives the mean, and the variance of columns near 0. If a column lies
far from 0 (years, for example), its squares cancel, and the server asks again. The mean as the
shift gives the variance without cancellation. All messages are plain sums, so a secure sum
suffices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

RANK = 1e-10
"""Fraction of the largest eigenvalue below which an eigenvalue is rounding error."""


def principal(moments: Tensor, count: int, whiten: bool) -> Tensor:
    """Return the projection on the first principal components, (D, count) float64.

    Parameters
    ----------
    moments : Tensor
        Mean of z zᵀ over rows z of mean 0, (D, D) float64, with M = V Λ Vᵀ.
    count : int
        K, of at most D components: the columns of V with the largest eigenvalues. The largest
        entry of each is positive, so that the sign does not depend on the solver.
    whiten : bool
        True: divide each by √λ, so that the projected rows have variance 1. Components beyond the
        rank of the moments, as with few rows, are 0: their variance is unknown.
    """
    values, vectors = torch.linalg.eigh(moments)
    first, values = vectors.flip(1)[:, :count], values.flip(0)[:count]
    largest = first.gather(0, first.abs().argmax(0, keepdim=True))
    first = first * largest.sign()
    if not whiten:
        return first
    told = values > RANK * values[0]
    return torch.where(told, first / values.clamp_min(RANK * float(values[0])).sqrt(), 0.0)


def dependent(correlations: Tensor, least: float) -> Iterator[tuple[int, list[int], Tensor]]:
    """Yield each column that independent ones before determine: its place, theirs, their weights.

    Parameters
    ----------
    correlations : Tensor
        Correlations of columns, (D, D) float64.
    least : float
        Part of a column's variance that others leave, at or below which they determine it.
    """
    inverse, kept = torch.zeros_like(correlations), list[int]()  # of the Cholesky factor
    for place in range(len(correlations)):
        inner, told = inverse[: len(kept), : len(kept)], correlations[kept, place]
        before = inner @ told
        left = float(correlations[place, place] - before @ before)
        if left > least:
            inverse[len(kept), : len(kept)] = -(before @ inner) / math.sqrt(left)
            inverse[len(kept), len(kept)] = 1 / math.sqrt(left)
            kept.append(place)
        else:
            yield place, [*kept], inner.T @ before


CONSTANT = 1e-12
"""Standard deviation, relative to the mean, at or below which a column counts as constant."""

CANCELLED = 1e-4
"""Variance, as a fraction of the mean square, below which rounding costs it digits."""

SAME = 1e-6
"""Variance, as a fraction of the mean square, at or below which it is rounding error and counts as
0."""


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums over the rows of C columns; `+` adds those of several clients.

    Attributes
    ----------
    count : int
        n, the number of rows.
    shift : Tensor
        s, the shift subtracted from each column, (C,) float64.
    total, squares : Tensor
        Σ (c − s) and Σ (c − s)², (C,) float64, of the values that are there.
    seen : Tensor or None
        Number of values in each column, (C,) float64; None if no value is missing.
    repeated : tuple of bool
        Whether a number far from all others repeats in each column; empty if it is not known, as
        in a sum over clients.
    """

    count: int
    shift: Tensor
    total: Tensor
    squares: Tensor
    seen: Tensor | None = None
    repeated: tuple[bool, ...] = ()

    @classmethod
    def of(cls, columns: Tensor, shift: Tensor | None = None, missing: bool = False) -> Sums:
        """Sum columns, (n, C), in float64, their deviations from `shift` (C,), or from 0.

        With `missing`, NaN is a missing value.
        """
        shift = torch.zeros(columns.shape[1]).double() if shift is None else shift.double()
        deviations = columns.double() - shift
        seen = None
        if missing:
            there = ~deviations.isnan()
            deviations, seen = deviations.where(there, 0.0), there.sum(0).double()
        return cls(len(columns), shift, deviations.sum(0), deviations.square().sum(0), seen)

    def __add__(self, other: Sums) -> Sums:
        if not torch.equal(self.shift, other.shift):
            raise ValueError("sums of deviations from different shifts do not add")
        total, squares = self.total + other.total, self.squares + other.squares
        seen = None if self.seen is None or other.seen is None else self.seen + other.seen
        return Sums(self.count + other.count, self.shift, total, squares, seen)

    def first(self, columns: int) -> Sums:
        """Return the sums of the first columns."""
        seen = None if self.seen is None else self.seen[:columns]
        shift, total, squares = (t[:columns] for t in (self.shift, self.total, self.squares))
        return Sums(self.count, shift, total, squares, seen, self.repeated[:columns])

    @property
    def _counts(self) -> Tensor | int:
        return self.count if self.seen is None else self.seen.clamp_min(1)

    @property
    def mean(self) -> Tensor:
        """Mean of each column, (C,)."""
        return self.shift + self.total / self._counts

    @property
    def var(self) -> Tensor:
        """Variance of each column over the n values, (C,): Σ (c − s)² / n − (mean − s)²."""
        n = self._counts
        return (self.squares / n - (self.total / n).square()).clamp_min(0)

    @property
    def cancelled(self) -> bool:
        """Whether a column lies so far from the shift that its variance has lost digits."""
        return bool((self.var < CANCELLED * self.squares / self._counts).any())


@dataclass(frozen=True, eq=False)
class Standardiser:
    """Takes columns to mean 0 and variance 1 in float32.

    Attributes
    ----------
    mean, std : Tensor
        Mean and standard deviation of C columns, (C,) float64. The std of a column without spread
        is infinite: its feature is 0 for every row, as no weight for it was ever learned.
    fill : Tensor or None
        Value that replaces missing values (NaN) of each feature, (D,) float64; None if none is
        missing.
    """

    mean: Tensor
    std: Tensor
    fill: Tensor | None = None

    @classmethod
    def from_sums(cls, sums: Sums) -> Self:
        """Return the one of columns with those sums."""
        std = sums.var.sqrt()
        constant = std <= CONSTANT * sums.mean.abs()
        return cls(sums.mean, torch.where(constant, torch.inf, std))

    def features(self, x: Tensor) -> Tensor:
        """Return (x − mean)/std of the columns (N, C)."""
        return ((self.filled(x) - self.mean) / self.std).float()

    def filled(self, x: Tensor) -> Tensor:
        """Return features (N, D) without missing values."""
        return x if self.fill is None else x.where(~x.isnan(), self.fill)


def renewed(scale: Standardiser, mean: Tensor, squares: Tensor) -> tuple[Standardiser, Tensor]:
    """Return the standardisation of a subset of rows, and its scaling of the columns.

    With the columns z that `scale` makes, the new ones are (z − m)/b, b = √(q − m²). A column that
    is constant over these rows has b = ∞, and its new std is infinite.

    Parameters
    ----------
    scale : Standardiser
        That of all rows.
    mean, squares : Tensor
        m and q, mean and mean square of z over some of them, (C,) float64.

    Returns
    -------
    Standardiser, Tensor
        The new one, without `fill`, and b, (C,).
    """
    var = squares - mean.square()
    constant = var <= SAME * squares
    factor = torch.where(constant, torch.inf, var.clamp_min(0).sqrt())
    moved = torch.where(scale.std.isinf(), 0.0, scale.std * mean)
    return Standardiser(scale.mean + moved, scale.std * factor), factor
