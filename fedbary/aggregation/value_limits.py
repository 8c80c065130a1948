"""Limits of values, so that no rule's arithmetic overflows."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedbary.aggregation.reals import flat_reals

LOG_VAR_LIMIT = 40.0
"""The largest magnitude of an admitted log-variance: standard deviations from 2e-9 to 5e8."""

LARGEST_LOG_VAR = 0.99 * LOG_VAR_LIMIT
"""The largest magnitude of an aggregate's log-variances, so that admission takes what clients keep.

GAA multiplies variances by Σ w² in each round; without this limit they would fall below the
admitted range.
"""

_HEADROOM = 2.0**20
"""The largest factor by which sums over clients may multiply a coordinate."""


def value_limit(dtype: torch.dtype, gaussian: bool) -> float:
    """Return the largest magnitude of an admitted value, which every rule's coordinates can carry.

    A Gaussian's m/v (RKLB) is computed in the mean's precision, or float32, with 1/v up to e⁴⁰;
    squares (FKLB, Multi-Krum, FedAG) in float64. In float32 that is 1.4e15 for means of Gaussians
    and 3e32 for other arrays.

    Parameters
    ----------
    dtype : torch.dtype
        Type of the array, floating or complex.
    gaussian : bool
        True: it holds means of Gaussians.
    """
    largest = torch.finfo(torch.promote_types(dtype, torch.float32)).max / _HEADROOM
    square = math.sqrt(torch.finfo(torch.float64).max / _HEADROOM)
    return min(largest * math.exp(-LOG_VAR_LIMIT) if gaussian else largest, square)


def check_values(tensor: Tensor, gaussian: bool) -> None:
    """Raise a ValueError unless a tensor's values are finite and within `value_limit`."""
    if tensor.numel() == 0:
        return
    limit = value_limit(tensor.dtype, gaussian)
    low, high = extremes(tensor).tolist()
    if not -limit <= low <= high <= limit:
        raise ValueError(
            f"its values run from {low:.6g} to {high:.6g}, allowed are {-limit:.3g} to {limit:.3g}"
        )


def extremes(tensor: Tensor) -> Tensor:
    """Return the least and the largest of a tensor's numbers, of which there are some.

    Raises
    ------
    ValueError
        If one of its numbers is not finite.
    """
    found = torch.stack(torch.aminmax(flat_reals(tensor))).double()
    if not found.isfinite().all():
        raise ValueError("it holds values that are not finite")
    return found
