"""Sets of classes that hold the true one at a chosen rate: split conformal prediction.

A score says how badly a class fits an example. Only its bin counts, see `histograms`. With n scores
of held-out examples the threshold is the least bin that ⌈(n + 1) level⌉ of them do not exceed. A
set holds the classes whose bins do not exceed it. If a new example and the held-out ones are
exchangeable, and the model has seen none of them,

    level ≤ P(the set holds its class) ≤ level + 1/(n + 1) + the mass of the threshold's bin.

References
----------
- Vovk, Gammerman and Shafer, Algorithmic Learning in a Random World, 2005;
- ``lac``: Sadinle, Lei and Wasserman, Least Ambiguous Set-Valued Classifiers, JASA 2019;
- ``aps``: Romano, Sesia and Candès, Classification with Valid and Adaptive Coverage, NeurIPS 2020;
- ``raps``: Angelopoulos, Bates, Malik and Jordan, Uncertainty Sets for Image Classifiers, 2021.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import torch
from torch import Tensor

from fedbary.errors import SettingError
from fedbary.predictive.histograms import BINS, bins_of, counted

QUESTION = "conformal"
"""Name of the server's question for the sites' histograms."""

PENALTY = 0.1
"""Increase of a ``raps`` score for each rank after the first `FREE_RANKS`."""

FREE_RANKS = 1


def class_bins(score: str, probs: Tensor) -> Tensor:
    """Return the bin of each class's score, (N, classes) int64.

    Parameters
    ----------
    score
        ``lac``: 1 − p of the class. ``aps``: the probability of all classes above it, 0 for the
        first, so that no set is empty and nothing is drawn. ``raps``: the same and 0.1 for each
        rank after the first, divided by the largest such score.
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


def held_out_histogram(score: str, probs: Tensor, y: Tensor, by_class: bool) -> Tensor:
    """Return the histogram of the true classes' scores, a row for all or one a class.

    Parameters
    ----------
    score
        As of `class_bins`.
    probs, y
        Probabilities (N, classes) of held-out examples, and their classes (N,).
    by_class
        True: each class has a row of its own.

    Returns
    -------
    Tensor
        Counts (rows, BINS), int64.
    """
    y = y.to(probs.device)
    own = class_bins(score, probs).gather(1, y[:, None])[:, 0]
    rows = y if by_class else torch.zeros_like(y)
    return counted(own, rows, probs.shape[-1] if by_class else 1)


def examples_needed(level: float) -> int:
    """Return the least number of held-out examples that give a threshold: level / (1 − level)."""
    exact = Fraction(str(level))
    return math.ceil(exact / (1 - exact))


def threshold(counts: Tensor, level: float) -> int:
    """Return the least bin that ⌈(n + 1) level⌉ of n scores do not exceed; the last if n is less.

    Parameters
    ----------
    counts
        Number of scores in each bin, (BINS,).
    level
        From above 0 to below 1.
    """
    rank = math.ceil((int(counts.sum()) + 1) * Fraction(str(level)))
    place = torch.searchsorted(counts.cumsum(0), torch.tensor(rank))
    return min(int(place), BINS - 1)


@dataclass(frozen=True, eq=False)
class Conformal:
    """Thresholds that turn probabilities into sets.

    Parameters
    ----------
    score : str
        As of `class_bins`.
    level : float
        Rate at which sets hold the true class, from above 0 to below 1.
    counts : Tensor
        The sites' histograms, summed: (1, BINS), or a row a class.

    Raises
    ------
    SettingError
        If the level is out of its range.
    """

    score: str
    level: float
    counts: Tensor

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
    def thresholds(self) -> Tensor:
        """The largest bin in a set, (rows,): each row's own; for a short row that of all rows."""
        short, of_all = set(self.short), threshold(self.counts.sum(0), self.level)
        rows = enumerate(self.counts)
        return torch.tensor(
            [of_all if k in short else threshold(row, self.level) for k, row in rows]
        )

    def sets(self, probs: Tensor) -> Tensor:
        """Return the set of each example, (N, classes) bool."""
        return class_bins(self.score, probs) <= self.thresholds.to(probs.device)

    def covered(self, counts: Tensor) -> int:
        """Return the number of a histogram's examples whose set holds their class."""
        allowed = torch.arange(BINS) <= self.thresholds[:, None]
        return int(counts[allowed].sum())

    def without(self, counts: Tensor) -> Conformal:
        """Return the same without the histogram of a site."""
        return replace(self, counts=self.counts - counts)
