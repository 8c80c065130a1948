"""Numbers such as −999 that stand for a missing value: they repeat, far from all other numbers."""

from __future__ import annotations

from itertools import product

import numpy as np

LEAST = 3
"""Number of rows in which each stands at least."""

FAR = {20: 3.0, 5: 10.0}
"""Distance from all other numbers, in ranges of these, from which on one is far, by how many
different others there are at least."""

AT_AN_END = 2
"""Most different ones above, or below, all other numbers."""


def sentinels(values: np.ndarray) -> dict[float, int]:
    """Return the numbers that repeat far from all others, with their counts.

    Up to two numbers at each end are sentinels if each stands in `LEAST` rows, and is `FAR` ranges
    of all other numbers away from these. The steps of a scale and the settings of an experiment are
    few, so they are no sentinels.

    Parameters
    ----------
    values : ndarray
        (N,) float64; NaN is no number.
    """
    found, counts = np.unique(values[np.isfinite(values)], return_counts=True)
    often = counts >= LEAST
    for low, high in sorted(product(range(AT_AN_END + 1), repeat=2), key=sum, reverse=True):
        inner = found[low : len(found) - high]
        outer = np.r_[:low, len(found) - high : len(found)]
        far = [FAR[least] * np.ptp(inner) for least in FAR if inner.size >= least]
        if not far or low + high == 0 or not often[outer].all():
            continue
        apart = [inner[0] - found[low - 1]] * (low > 0) + [found[-high] - inner[-1]] * (high > 0)
        if min(apart) >= far[0]:
            return dict(zip(found[outer].tolist(), counts[outer].tolist(), strict=True))
    return {}
