"""Sets and intervals that hold the truth at a chosen rate: split conformal prediction.

A score says how badly a class, or a number, fits an example. Scores are rounded to bins, see
`histograms`. The threshold is the least bin that ⌈(n + 1) level⌉ of n held-out examples' scores do
not exceed. A set holds the classes whose bins do not exceed the threshold. An interval holds the
numbers up to the bin's edge. If a new example and the held-out ones are exchangeable, and the model
was trained on none of them, then

    level ≤ P(the set holds its class) ≤ level + 1/(n + 1) + the mass of the threshold's bin.

Each row of a histogram has a threshold: a single row for all examples, or a row for each class or
group.

References
----------
Vovk, Gammerman and Shafer, Algorithmic Learning in a Random World, 2005; Sadinle, Lei and
Wasserman, Least Ambiguous Set-Valued Classifiers, JASA 2019 (``lac``); Romano, Sesia and Candès,
Classification with Valid and Adaptive Coverage, NeurIPS 2020 (``aps``); Angelopoulos, Bates, Malik
and Jordan, Uncertainty Sets for Image Classifiers, ICLR 2021 (``raps``); Lei et al.,
Distribution-Free Predictive Inference for Regression, JASA 2018, section 5.2 (intervals); Podkopaev
and Ramdas, Distribution-Free Uncertainty Quantification for Classification under Label Shift, UAI
2021 (`Thresholds.counted_as`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import torch
from torch import Tensor

from fedbary.errors import SettingError
from fedbary.predictive import Forecast
from fedbary.predictive.histograms import BINS, bins_of, upper_odds

QUESTION = "conformal"
"""Name of the server's question for the sites' histograms."""

SIZES = "conformal-sizes"
"""Name of its question for the sizes of a site's sets, or the widths of its intervals."""

PENALTY = 0.1
"""Increase of a ``raps`` score for each rank after the first `FREE_RANKS`."""

FREE_RANKS = 1


def class_bins(score: str, probs: Tensor) -> Tensor:
    """Return the bin of each class's score, (N, classes) int64.

    Parameters
    ----------
    score
        ``lac``: 1 − p of the class. ``aps``: the total probability of the more probable classes. It
        is 0 for the most probable class, so no set is empty, and nothing is drawn at random.
        ``raps``: that of ``aps`` plus 0.1 for each rank after the first, divided by the largest
        such score.
    probs
        Probabilities (N, classes).
    """
    probs = probs.double()
    if score == "lac":
        return bins_of(1 - probs, probs)
    penalty = PENALTY if score == "raps" else 0.0
    ordered, order = probs.sort(dim=-1, descending=True)
    above = ordered.cumsum(-1) - ordered
    rest = ordered.flip(-1).cumsum(-1).flip(-1)
    classes = probs.shape[-1]
    ranks = torch.arange(1, classes + 1, dtype=probs.dtype, device=probs.device)
    extra = penalty * (ranks - FREE_RANKS).clamp_min(0)
    largest = penalty * max(0, classes - FREE_RANKS)
    found = bins_of(above + extra, rest + largest - extra)
    return found.gather(-1, order.argsort(-1))


def true_class_bins(score: str, probs: Tensor, y: Tensor) -> Tensor:
    """Return the bin of each example's true class, (N,) int64; arguments: `class_bins`."""
    return class_bins(score, probs).gather(1, y.to(probs.device)[:, None])[:, 0]


def residual_bins(forecast: Forecast, y: Tensor) -> Tensor:
    """Return the bin of each target's score s/(1 + s), (N,) int64, with s = |y − mean|/std.

    Equal steps of the score's log-odds are equal steps of log s, 1.6 % each.
    """
    residual = (y.to(forecast.mean.device) - forecast.mean).abs().double()
    return bins_of(residual, forecast.var.double().sqrt())


def examples_needed(level: float) -> int:
    """Return the least number of held-out examples that give a threshold: level / (1 − level)."""
    exact = Fraction(str(level))
    return math.ceil(exact / (1 - exact))


def least_coverage(level: float, counted: Iterable[int], hostile: int) -> float:
    """Return the coverage of honest sites' examples that so many hostile sites leave at least.

    It is level − (1 − level) m/(n + 1) under one threshold, if the hostile sites count for m
    examples and the others for n. The sites that count most are taken for hostile.

    Parameters
    ----------
    level
        Above 0 and below 1.
    counted
        Number of held-out examples for which each site counts.
    hostile
        Number of hostile sites.
    """
    ordered = sorted(counted, reverse=True)
    lies, honest = sum(ordered[:hostile]), sum(ordered[hostile:])
    return max(0.0, level - (1 - level) * lies / (honest + 1))


def threshold(counts: Tensor, level: float) -> int:
    """Return the least bin that ⌈(n + 1) level⌉ of n scores do not exceed; the last if n is less.

    Parameters
    ----------
    counts
        Number of scores in each bin, (BINS,).
    level
        Above 0 and below 1.
    """
    rank = math.ceil((int(counts.sum()) + 1) * Fraction(str(level)))
    place = torch.searchsorted(counts.cumsum(0), torch.tensor(rank))
    return min(int(place), BINS - 1)


SLACK = 1e-12
"""The part by which a sum of weights may fall short by rounding."""


@dataclass(frozen=True, eq=False)
class Thresholds:
    """The threshold of each row, a bin.

    Parameters
    ----------
    level : float
        The rate at which sets hold the truth, above 0 and below 1.
    counts : Tensor
        The sites' histograms, summed: (rows, BINS).
    counted_as : Tensor, optional
        Number of examples of each class where predictions are made, (rows,); only for rows that are
        classes. A score of class c then has weight w_c, the ratio of this number to the row's own.
        The threshold of c is the least bin up to which scores weigh level · (Σ w + w_c).

    Raises
    ------
    SettingError
        If the level is out of its range.
    """

    level: float
    counts: Tensor
    counted_as: Tensor | None = None

    def __post_init__(self) -> None:
        if not 0 < self.level < 1:
            raise SettingError("level", self.level, "above 0 and below 1")

    @property
    def examples(self) -> int:
        """Number of held-out examples behind the thresholds."""
        return int(self.counts.sum())

    @property
    def short(self) -> list[int]:
        """The rows with too few held-out examples for a threshold of their own."""
        held = self.counts.sum(1).tolist()
        return [row for row, count in enumerate(held) if count < examples_needed(self.level)]

    @cached_property
    def bins(self) -> Tensor:
        """The threshold of each row, (rows,); a row that is short has that of all examples."""
        if self.counted_as is not None:
            return self._weighted(self.counted_as.double())
        short, of_all = set(self.short), threshold(self.counts.sum(0), self.level)
        rows = enumerate(self.counts)
        return torch.tensor(
            [of_all if k in short else threshold(row, self.level) for k, row in rows]
        )

    def _weighted(self, wanted: Tensor) -> Tensor:
        weights = wanted / self.counts.sum(1).clamp_min(1)
        reached = (weights @ self.counts.double()).cumsum(0)
        needed = self.level * (reached[-1] + weights) * (1 - SLACK)
        return torch.searchsorted(reached, needed).clamp_max(BINS - 1)

    def covered(self, counts: Tensor) -> int:
        """Return how many of the examples in a histogram do not exceed their row's threshold."""
        return int(counts[torch.arange(BINS) <= self.bins[:, None]].sum())

    def without(self, counts: Tensor) -> Thresholds:
        """Return the thresholds without a site's histogram."""
        return Thresholds(self.level, self.counts - counts)

    def of_site(self, own: Tensor, by_class: bool) -> Thresholds:
        """Return the thresholds for one site, given its own histogram.

        If rows are classes, they are weighted to the site's class frequencies. Otherwise a row is
        the site's own if the site has enough examples, and else that of all sites.
        """
        if by_class:
            return Thresholds(self.level, self.counts, own.sum(1))
        enough = own.sum(1, keepdim=True) >= examples_needed(self.level)
        whole = self.counts.clone()
        whole[self.short] = self.counts.sum(0)
        return Thresholds(self.level, torch.where(enough, own, whole))

    def sets(self, score: str, probs: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return which classes are in each example's set; arguments: `sets_within`."""
        return sets_within(self.bins, score, probs, rows)

    def intervals(self, forecast: Forecast, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the ends of each interval; arguments: `intervals_within`."""
        return intervals_within(self.bins, forecast, rows)


def sets_within(bins: Tensor, score: str, probs: Tensor, rows: Tensor | None = None) -> Tensor:
    """Return which classes are in each example's set, (N, classes) bool.

    Parameters
    ----------
    bins
        The threshold of each row, (rows,).
    score, probs
        As for `class_bins`.
    rows
        The row of each example, (N,); None: the rows are classes, or one for all.
    """
    bins = bins.to(probs.device)
    return class_bins(score, probs) <= (bins if rows is None else bins[rows][:, None])


def intervals_within(
    bins: Tensor, forecast: Forecast, rows: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the lower and the upper end of each interval, mean ∓ q std, (N,) float64 each.

    q is the upper edge of the threshold's bin, infinite for the last bin. `bins` and `rows` are as
    for `sets_within`.
    """
    edges = torch.tensor([upper_odds(number) for number in bins.tolist()], dtype=torch.float64)
    edges = edges if rows is None else edges[rows]
    half = torch.where(edges.isinf(), edges, edges * forecast.var.double().sqrt())
    return forecast.mean.double() - half, forecast.mean.double() + half
