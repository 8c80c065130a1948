"""Sets and intervals that hold the truth at a chosen rate: split conformal prediction.

A score says how badly a class, or a number, fits an example. Scores are rounded to bins. A score s
lies in [0, 1]. Bins are equal steps of its log-odds log s − log(1 − s), so they are narrow near 0
and near 1. The first and the last bin hold scores beyond `LIMIT`. Sums of histograms over sites are
exact, whatever the order.

The threshold is the least bin that ⌈(n + 1) level⌉ of n held-out examples' scores do not exceed. A
set holds the classes whose bins do not exceed the threshold. An interval holds the numbers up to
the bin's edge. If a new example and the held-out ones are exchangeable, and the model was trained
on none of them, then

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
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from statistics import median_low
from typing import Any, NamedTuple

import torch
from scipy.special import betaincinv
from torch import Tensor

from fedbary.errors import SettingError
from fedbary.predictive.predictor import Forecast

QUESTION = "conformal"
"""Name of the server's question for the sites' histograms."""

SIZES = "conformal-sizes"
"""Name of its question for the sizes of a site's sets, or the widths of its intervals."""

PENALTY = 0.1
"""Increase of a ``raps`` score for each rank after the first `FREE_RANKS`."""

FREE_RANKS = 1

# Histograms

LIMIT = 16
"""The log-odds at which bins end: scores of 1e-7 and of 1 − 1e-7."""

PER_UNIT = 64
"""Bins in a unit of log-odds."""

BINS = 2 * LIMIT * PER_UNIT + 2
"""Number of bins."""

MOST = 10**12
"""Largest count of a cell that is believed."""

FEW_SITES = 5
"""Least number of sites of which two may be hostile; of fewer one may be."""


def bins_of(score: Tensor, rest: Tensor) -> Tensor:
    """Return the bins (…,) int64 of scores s, given s and 1 − s up to one common factor.

    Both are given because 1 − s, computed from an s near 1, has no digits left. NaN is in the last
    bin.
    """
    odds = score.log() - rest.log()
    place = ((odds + LIMIT) * PER_UNIT).floor() + 1
    return place.nan_to_num(nan=math.inf).clamp(0, BINS - 1).long()


def upper_odds(number: int) -> float:
    """Return the odds s/(1 − s) at which a bin ends."""
    return math.inf if number == BINS - 1 else math.exp(number / PER_UNIT - LIMIT)


def upper_edge(number: int) -> float:
    """Return the score at which a bin ends."""
    return 1 / (1 + 1 / upper_odds(number))


def counted(bins: Tensor, rows: Tensor, height: int) -> Tensor:
    """Return the number of examples in each bin of each row, (height, BINS) int64, on the CPU.

    Parameters
    ----------
    bins, rows
        Bin and row of each example, (N,).
    height
        Number of rows.
    """
    return torch.bincount(rows * BINS + bins, minlength=height * BINS).view(height, BINS).cpu()


class HeldOut(NamedTuple):
    """Histograms of a site's holdout, or of all sites' holdouts together.

    Attributes
    ----------
    scores : Tensor
        Histogram of conformal scores, (rows, BINS); one row for all examples, or one for each
        class.
    risk : Tensor
        Histogram of uncertainties, (2, BINS): of right and of wrong predictions. For predicted
        numbers it is (0, BINS).
    repeated : int
        Number of examples that equal a training example, or an earlier one of these: the rows may
        not be independent.
    """

    scores: Tensor
    risk: Tensor
    repeated: int = 0

    @property
    def examples(self) -> int:
        """Number of examples."""
        return int(self.scores.sum())

    def told(self) -> dict[str, Any]:
        """Return the cells that are not empty and their counts, as entries of a message.

        `repeated` is among them if it is not 0.
        """
        risk = _sparse("risk-", self.risk) if len(self.risk) else {}
        repeated = {"repeated": self.repeated} if self.repeated else {}
        return {**_sparse("", self.scores), **risk, **repeated}


def together(sites: Iterable[HeldOut]) -> HeldOut:
    """Return the sum of the histograms of at least one site."""
    scores, risk, repeated = zip(*sites, strict=True)
    return HeldOut(sum(scores[1:], scores[0]), sum(risk[1:], risk[0]), sum(repeated))


def bounded(sites: Mapping[str, HeldOut], ratio: float | None) -> dict[str, HeldOut]:
    """Return histograms by site, of which no two decide alone.

    Site k with n_k examples counts for min(n_k, c). The bound c is the largest at which the two
    sites that count most count for no more than all others together, or the median if that is
    larger. Among fewer than `FEW_SITES` sites it is the one site that counts most. A ratio replaces
    this bound: c is the ratio times the median. The median of an even number is the lower one. A
    lone site counts in full.
    """
    held = [site.examples for site in sites.values()]
    if len(held) < 2:
        return {**sites}
    usual = median_low(held)
    most = max(usual, _outweighed(held)) if ratio is None else math.floor(ratio * usual)
    return {
        name: _lighter(site, most) if site.examples > most else site for name, site in sites.items()
    }


def _outweighed(held: Sequence[int]) -> int:
    """Return the largest bound at which the largest numbers sum to no more than the others do."""
    few = 1 if len(held) < FEW_SITES else 2
    ordered = sorted(held, reverse=True)

    def excess(most: int) -> int:
        counted = [min(number, most) for number in ordered]
        return sum(counted[:few]) - sum(counted[few:])

    # The excess is 0 at 0 and convex, so it is above 0 from one bound on.
    return bisect_right(range(ordered[0] + 1), 0, key=excess) - 1


def _lighter(site: HeldOut, most: int) -> HeldOut:
    """Return histograms of `most` examples in the same proportions, but for one example."""
    scores, risk = (_scaled(counts, most, site.examples) for counts in site[:2])
    return HeldOut(scores, risk, most * site.repeated // site.examples)


def _scaled(counts: Tensor, most: int, examples: int) -> Tensor:
    """Return counts whose sums up to each cell are most/examples of the given, rounded down."""
    sums = [0, *(most * reached // examples for reached in counts.flatten().cumsum(0).tolist())]
    return torch.tensor(sums, dtype=torch.int64).diff().view_as(counts)


def believed(answer: Mapping[str, Any], height: int, risks: int) -> HeldOut:
    """Return the histograms in a site's answer, after a check.

    Parameters
    ----------
    answer
        At an honest site the result of `HeldOut.told`.
    height, risks
        The number of rows of scores, and of uncertainties: 2, or 0 for numbers.

    Raises
    ------
    ValueError
        Unless all counts are whole numbers above 0, no cell comes twice, both histograms count
        equally many examples, and no more are repeated.
    """
    scores, (repeated,) = _dense(answer, "", height), _whole([answer.get("repeated", 0)])
    held = HeldOut(scores, _dense(answer, "risk-", risks) if risks else scores[:0], repeated)
    if not 0 <= repeated <= held.examples:
        raise ValueError("more repeated examples than there are")
    if risks and held.examples != int(held.risk.sum()):
        raise ValueError("histograms of different numbers of examples")
    return held


def _sparse(prefix: str, histogram: Tensor) -> dict[str, list[int]]:
    flat = histogram.flatten()
    cells = flat.nonzero()[:, 0]
    return {f"{prefix}cells": cells.tolist(), f"{prefix}counts": flat[cells].tolist()}


def _dense(answer: Mapping[str, Any], prefix: str, height: int) -> Tensor:
    cells, counts = (_whole(answer[f"{prefix}{part}"]) for part in ("cells", "counts"))
    if len(cells) != len(counts) or len(set(cells)) != len(cells):
        raise ValueError("cells and counts that do not go together")
    if not all(0 <= cell < height * BINS for cell in cells):
        raise ValueError(f"a cell beyond {height} × {BINS}")
    if not all(0 < count <= MOST for count in counts):
        raise ValueError(f"a count that is not from 1 to {MOST}")
    flat = torch.zeros(height * BINS, dtype=torch.int64)
    flat[torch.tensor(cells, dtype=torch.int64)] = torch.tensor(counts, dtype=torch.int64)
    return flat.view(height, BINS)


def _whole(values: Any) -> list[int]:
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        raise ValueError("no lists of whole numbers")
    return values


# Sets and intervals


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


def repeated_words(repeated: int, examples: int, kind: str) -> str:
    """Return words on examples that equal training examples or each other."""
    return f"{repeated} of {examples} {kind} examples equal training examples or each other"


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
    repeated : int
        Number of examples behind the thresholds that equal others, see `HeldOut`.

    Raises
    ------
    SettingError
        If the level is out of its range.
    """

    level: float
    counts: Tensor
    counted_as: Tensor | None = None
    repeated: int = 0

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

    def lacking(self, rows: Sequence[str]) -> str:
        """Return a line on examples behind thresholds: too few of them, or some equal others.

        Parameters
        ----------
        rows
            The rows' names.
        """
        said = []
        if self.repeated:
            equal = repeated_words(self.repeated, self.examples, "held-out")
            held = f"if they belong together, sets hold the truth in less than {self.level:.4g}"
            said += [f"{equal}: {held} of cases, see group="]
        short = ", ".join(rows[row] for row in self.short)
        if self.examples < (needed := examples_needed(self.level)):
            held = f"{self.examples} examples are held out, and a level of {self.level} needs"
            said += [f"Sets hold all there is: {held} {needed}"]
        elif short:
            said += [f"Too few examples for a threshold of their own: {short}"]
        return "; ".join(said)

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
        return replace(self, counts=self.counts - counts)

    def of_site(self, own: Tensor, by_class: bool) -> Thresholds:
        """Return the thresholds for one site, given its own histogram.

        If rows are classes, they are weighted to the site's class frequencies. Otherwise a row is
        the site's own if the site has enough examples, and else that of all sites.
        """
        if by_class:
            return replace(self, counted_as=own.sum(1))
        enough = own.sum(1, keepdim=True) >= examples_needed(self.level)
        whole = self.counts.clone()
        whole[self.short] = self.counts.sum(0)
        return replace(self, counts=torch.where(enough, own, whole))

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


# Rates

CONFIDENCE = 0.95
"""Confidence of the intervals."""


def interval(hits: int, count: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the Clopper-Pearson interval of a rate, from the numbers of hits and of trials."""
    tail = (1 - confidence) / 2
    low = float(betaincinv(hits, count - hits + 1, tail)) if hits else 0.0
    high = float(betaincinv(hits + 1, count - hits, 1 - tail)) if hits < count else 1.0
    return low, high


def without_intervals(scores: Mapping[str, float]) -> dict[str, float]:
    """Return scores without the ends of their intervals."""
    return {k: score for k, score in scores.items() if not k.endswith(("_low", "_high"))}
