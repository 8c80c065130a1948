"""95 % intervals of scores: of any by resampling the rows, of an AUROC by the numbers of rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import torch
from scipy.optimize import brentq
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


def by_std(value: float, std: float) -> Ends:
    """Return the 95 % interval of a score with a standard error; none where either is not known."""
    known = math.isfinite(value) and std > 0
    return (value - TWO_SIDED * std, value + TWO_SIDED * std) if known else NONE


def _ends(drawn: np.ndarray, score: float) -> Ends:
    asked = len(drawn)
    drawn = drawn[np.isfinite(drawn)]
    if not math.isfinite(score) or len(drawn) < 0.9 * asked:
        return NONE
    low, high = np.quantile(drawn, (0.025, 0.975)) - (drawn.mean() - score)
    low = max(min(float(low), score), min(drawn.min(), score))
    high = min(max(float(high), score), max(drawn.max(), score))
    return (low, high) if low < high else NONE


def of_auroc(auroc: float, counts: Sequence[tuple[float, float]]) -> Ends:
    """Return the 95 % interval of an AUROC, by the numbers of rows alone.

    Its ends θ are where |AUROC − θ| = 1.96 √V(θ). With m events, n other rows and
    N = (m + n)/2 − 1,

        V(θ) = θ (1 − θ) (1 + N ((1 − θ)/(2 − θ) + θ/(1 + θ))) / (m n).

    Several sites' AUROC is the mean of their own with weights w = m n, so V(θ) = Σ w² V_k / (Σ w)².

    Parameters
    ----------
    auroc
        From 0 to 1.
    counts
        Events m and other rows n of each site, above 0.

    References
    ----------
    Newcombe, Confidence intervals for an effect size measure based on the Mann-Whitney statistic,
    part 2, method 5, Statistics in Medicine 2006. V is Hanley and McNeil's, 1982.
    """
    m, n = np.array(counts, dtype=float).reshape(-1, 2).T
    if not math.isfinite(auroc) or not len(m) or min(m.min(), n.min()) <= 0:
        return NONE

    def beyond(theta: float) -> float:
        """Return the squared distance of θ from the AUROC, less that of the interval's ends."""
        more = ((m + n) / 2 - 1) * ((1 - theta) / (2 - theta) + theta / (1 + theta))
        var = theta * (1 - theta) * float((m * n * (1 + more)).sum()) / float((m * n).sum()) ** 2
        return (auroc - theta) ** 2 - TWO_SIDED**2 * var

    low = float(brentq(beyond, 0, auroc)) if 0 < auroc < 1 else auroc
    high = float(brentq(beyond, auroc, 1)) if 0 < auroc < 1 else auroc
    inside = 1e-12
    if auroc <= 0:
        high = float(brentq(beyond, inside, 1))
    if auroc >= 1:
        low = float(brentq(beyond, 0, 1 - inside))
    return low, high
