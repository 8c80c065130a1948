"""Principal components from second moments."""

from __future__ import annotations

import torch
from torch import Tensor


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
        Whether each is divided by √λ, so that the projected rows have variance 1.
    """
    values, vectors = torch.linalg.eigh(moments)
    first, values = vectors.flip(1)[:, :count], values.flip(0)[:count]
    largest = first.gather(0, first.abs().argmax(0, keepdim=True))
    first = first * largest.sign()
    least = torch.finfo(torch.float64).eps * values[0]
    return first / values.clamp_min(float(least)).sqrt() if whiten else first
