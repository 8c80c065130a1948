"""How often sets or intervals hold the truth, and how large they are."""

from __future__ import annotations

import math

from torch import Tensor

from fedbary.predictive.conformal import interval, without_intervals

_TWO_SIDED = 1.959963984540054
"""Half-width of a mean's 95 % interval, in standard errors."""


def coverage(
    hits: Tensor, sizes: Tensor, called: str = "set_size", independent: bool = True
) -> dict[str, float]:
    """Score sets of classes, or intervals.

    - ``coverage``: part of the examples whose set holds the truth, with a 95 % Clopper-Pearson
      interval, ``coverage_low`` to ``coverage_high``;
    - ``set_size``, or another name given as `called`: mean number of classes in a set, or mean
      width of an interval, with a 95 % interval from its standard error, ``set_size_low`` to
      ``set_size_high``;
    - ``empty``: part of the sets without any class.

    Parameters
    ----------
    hits, sizes
        Whether each set holds the truth, and its size, (N,), N at least 1.
    called
        Name of the size.
    independent
        False: the examples may not be independent, and there is no interval.
    """
    count, held = int(hits.sum()), sizes.double()
    low, high = interval(count, len(hits))
    found = {
        "coverage": count / len(hits),
        "coverage_low": low,
        "coverage_high": high,
        **mean_size(*moments(held), len(held), called),
        **({"empty": float((held == 0).double().mean())} if called == "set_size" else {}),
    }
    return found if independent else without_intervals(found)


def moments(sizes: Tensor) -> tuple[float, float]:
    """Return mean and standard deviation of at least one size."""
    return float(sizes.double().mean()), float(sizes.double().std(correction=0))


def mean_size(mean: float, std: float, count: int, called: str) -> dict[str, float]:
    """Return a mean size by its name, with the interval of `coverage`, from `count` sizes."""
    error = _TWO_SIDED * std / math.sqrt(count)
    return {called: mean, f"{called}_low": mean - error, f"{called}_high": mean + error}
