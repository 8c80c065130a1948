"""Coverage and size of sets of classes."""

from __future__ import annotations

import math

from scipy.stats import beta
from torch import Tensor

CONFIDENCE = 0.95
"""Confidence of the intervals."""

_TWO_SIDED = 1.959963984540054
"""Standard errors of a mean to each side of it, at that confidence."""


def interval(hits: int, count: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the Clopper-Pearson interval of a rate, from the numbers of hits and of trials."""
    tail = (1 - confidence) / 2
    low = float(beta.ppf(tail, hits, count - hits + 1)) if hits else 0.0
    high = float(beta.ppf(1 - tail, hits + 1, count - hits)) if hits < count else 1.0
    return low, high


def coverage(sets: Tensor, y: Tensor) -> dict[str, float]:
    """Score sets of classes.

    - ``coverage``: fraction of the examples whose set holds their class, with a 95 %
    Clopper-Pearson interval, ``coverage_low`` to ``coverage_high``;
    - ``set_size``: mean number of classes in a set, ``set_size_low`` to ``set_size_high`` by its
      standard error;
    - ``empty``: part of the sets without any class.

    Parameters
    ----------
    sets
        Classes of each set, (N, classes) bool, N at least 1.
    y
        The classes (N,).
    """
    hits = int(sets.gather(1, y.to(sets.device)[:, None]).sum())
    low, high = interval(hits, len(y))
    sizes = sets.sum(1).double()
    size = float(sizes.mean())
    error = _TWO_SIDED * float(sizes.std(correction=0)) / math.sqrt(len(y))
    return {
        "coverage": hits / len(y),
        "coverage_low": low,
        "coverage_high": high,
        "set_size": size,
        "set_size_low": size - error,
        "set_size_high": size + error,
        "empty": float((sizes == 0).double().mean()),
    }
