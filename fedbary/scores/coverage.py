"""How often sets or intervals hold the truth, and how large they are."""

from __future__ import annotations

import math

from scipy.special import betaincinv
from torch import Tensor

CONFIDENCE = 0.95
"""Confidence of the intervals."""

_TWO_SIDED = 1.959963984540054
"""Standard errors of a mean to each side of it, at that confidence."""


def interval(hits: int, count: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the Clopper-Pearson interval of a rate, from the numbers of hits and of trials."""
    tail = (1 - confidence) / 2
    low = float(betaincinv(hits, count - hits + 1, tail)) if hits else 0.0
    high = float(betaincinv(hits + 1, count - hits, 1 - tail)) if hits < count else 1.0
    return low, high


def coverage(hits: Tensor, sizes: Tensor, called: str = "set_size") -> dict[str, float]:
    """Score sets of classes, or intervals.

    - ``coverage``: part of the examples whose set holds the truth, with a 95 % Clopper-Pearson
      interval, ``coverage_low`` to ``coverage_high``;
    - ``set_size``, or as it is `called`: mean number of classes in a set, or width of an interval,
      ``set_size_low`` to ``set_size_high`` by its standard error;
    - ``empty``: part of the sets without any class.

    Parameters
    ----------
    hits, sizes
        Whether each set holds the truth, and its size, (N,), N at least 1.
    """
    count, held = int(hits.sum()), sizes.double()
    low, high = interval(count, len(hits))
    size = float(held.mean())
    error = _TWO_SIDED * float(held.std(correction=0)) / math.sqrt(len(hits))
    return {
        "coverage": count / len(hits),
        "coverage_low": low,
        "coverage_high": high,
        called: size,
        f"{called}_low": size - error,
        f"{called}_high": size + error,
        **({"empty": float((held == 0).double().mean())} if called == "set_size" else {}),
    }
