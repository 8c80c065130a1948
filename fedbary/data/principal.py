"""Principal components from second moments."""

from __future__ import annotations

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
