"""95 % intervals of any scores, by resampling the rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

import numpy as np
import torch
from scipy.special import expit
from torch import Tensor

from fedbary.seeds import derive_seed

DRAWS = 400
"""Times that the rows are drawn anew."""

LEAST_ROWS = 10
"""Rows, or groups, below which there are no intervals."""

K = TypeVar("K", bound=Hashable)

TWO_SIDED = 1.959963984540054
"""Quantile of the normal distribution at 0.975."""

Ends = tuple[float, float]
"""The two ends of an interval; NaN where there is none."""

NONE: Ends = (math.nan, math.nan)


def bootstrap(
    judge: Callable[[Tensor], Mapping[K, float]],
    groups: Tensor,
    draws: int = DRAWS,
    seed: int = 0,
) -> dict[K, Ends]:
    """Return the 95 % interval of each score.

    Rows are drawn with replacement, whole groups at a time. The ends are the 2.5 and 97.5 %
    quantiles of the scores of the draws, less the draws' mean excess over the score itself: an ECE
    is larger on drawn rows than on the rows. They stay within the draws, and enclose the score.

    Parameters
    ----------
    judge
        Returns the scores of the rows at some places (n,), int64.
    groups
        The group of each row, (N,) int64; different numbers where each stands alone.
    draws, seed
        Number of draws, and their seed.

    Returns
    -------
    dict
        The interval by the score's name. It is NaN with fewer than 10 groups, where a tenth of the
        draws have no score, and where nearly all draws have the same: they do not show how a score
        varies, such as an AUROC of 1.
    """
    order = torch.argsort(groups, stable=True)
    counts = torch.unique(groups, return_counts=True)[1]
    parts = order.split(counts.tolist())
    whole = judge(torch.arange(len(groups)))
    if len(parts) < LEAST_ROWS:
        return dict.fromkeys(whole, NONE)
    rng = np.random.default_rng(derive_seed(seed, "bootstrap"))
    alone = len(parts) == len(groups)
    found = []
    for _ in range(draws):
        drawn = rng.integers(0, len(parts), len(parts))
        rows = order[torch.from_numpy(drawn)] if alone else torch.cat([parts[k] for k in drawn])
        found.append(judge(rows))
    return {name: _ends(np.array([one[name] for one in found]), whole[name]) for name in whole}


def by_std(value: float, std: float, is_share: bool) -> Ends:
    """Return the 95 % interval of a score with a standard error; of a share on its log-odds.

    There is none where either is not known, or a share is 0 or 1.
    """
    scale = value * (1 - value) if is_share else 1.0
    if not (math.isfinite(value) and std > 0 and scale > 0):
        return NONE
    half = TWO_SIDED * std / scale
    if not is_share:
        return value - half, value + half
    odds = math.log(value / (1 - value))
    return float(expit(odds - half)), float(expit(odds + half))


def _ends(drawn: np.ndarray, score: float) -> Ends:
    asked = len(drawn)
    drawn = drawn[np.isfinite(drawn)]
    if not math.isfinite(score) or len(drawn) < 0.9 * asked:
        return NONE
    low, high = np.quantile(drawn, (0.025, 0.975)) - (drawn.mean() - score)
    low = max(min(float(low), score), min(drawn.min(), score))
    high = min(max(float(high), score), max(drawn.max(), score))
    return (low, high) if low < high else NONE
