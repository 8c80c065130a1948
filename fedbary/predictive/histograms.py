"""Histograms of scores with fixed bins: sums over sites are exact, whatever the order.

A score s lies in [0, 1]. Bins are equal steps of its log-odds log s − log(1 − s), so they are
narrow near 0 and near 1. The first and the last bin hold scores beyond `LIMIT`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from statistics import median_low
from typing import Any, NamedTuple

import torch
from torch import Tensor

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
    """

    scores: Tensor
    risk: Tensor

    @property
    def examples(self) -> int:
        """Number of examples."""
        return int(self.scores.sum())

    def told(self) -> dict[str, list[int]]:
        """Return the cells that are not empty and their counts, as entries of a message."""
        risk = _sparse("risk-", self.risk) if len(self.risk) else {}
        return {**_sparse("", self.scores), **risk}


def together(sites: Iterable[HeldOut]) -> HeldOut:
    """Return the sum of the histograms of at least one site."""
    scores, risk = zip(*sites, strict=True)
    return HeldOut(sum(scores[1:], scores[0]), sum(risk[1:], risk[0]))


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
    return HeldOut(*(_scaled(counts, most, site.examples) for counts in site))


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
        Unless all counts are whole numbers above 0, no cell comes twice, and both histograms count
        equally many examples.
    """
    scores = _dense(answer, "", height)
    held = HeldOut(scores, _dense(answer, "risk-", risks) if risks else scores[:0])
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
