"""The server's questions in a look: columns, sums, histograms, products."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedbary.data.ids import shared, split
from fedbary.data.standardise import Standardiser, Sums
from fedbary.errors import RunError
from fedbary.tasks import Dialogue, Question, _sums
from fedbary.tasks._look.rules import (
    DIGESTS,
    IDS,
    KEPT,
    KINDS,
    LEAST,
    NUMBERS,
    REPEATED,
    SOME,
    Told,
    grid,
)

MOST_COLUMNS, MOST_PRODUCTS = 10_000, 2_000
"""Columns of a table that are believed, and of which products are asked: two million numbers."""

TWO_VALUED, FEW = 60, 4
"""Rows from which on a histogram of two cells shows a column of two values; of k + 1 cells, up to
`FEW` + 1, one of as many values from k times these rows on."""


@dataclass(frozen=True, eq=False)
class Cells:
    """A histogram of a site's column, with the site's mean and standard deviation.

    Attributes
    ----------
    edges : ndarray
        (m,) the inner edges, ascending; none if the site has too few rows.
    counts : ndarray
        (m + 1,) rows of each cell; the first and the last are open. (0,) without edges.
    mean, std : float
        Mean and standard deviation of the column there.
    """

    edges: np.ndarray
    counts: np.ndarray
    mean: float
    std: float

    @functools.cached_property
    def share(self) -> np.ndarray:
        """The share of values below each edge, (m,)."""
        found: np.ndarray = self.counts.cumsum()[:-1] / self.counts.sum()
        return found

    @functools.cached_property
    def tails(self) -> tuple[float, float]:
        """Mean distance of the values in each open cell from its edge, as estimated.

        The density of the next cell gives a first estimate; without one, that of a logistic
        distribution. Up to three times more or less, mean and variance become the site's. Few
        values of a column above 0 are then said to be below it, and the reverse.
        """
        low, high = self.share[0], 1 - self.share[-1]
        edges, inner = self.edges - self.mean, np.diff(self.share)
        first = np.array([self.std / (1.6 * high), self.std / (1.6 * low)])
        if len(inner):
            first = np.array([low, high]) * np.diff(edges)[[0, -1]] / inner[[0, -1]]
        factors = np.geomspace(1 / 3, 3, 61)
        below, middle = first[0] * factors, (edges[1:] + edges[:-1]) / 2
        above = -(inner @ middle + low * (edges[0] - below)) / high - edges[-1]
        above = above.clip(first[1] / 3, 3 * first[1])
        var = inner @ (middle**2 + np.diff(edges) ** 2 / 12) - self.std**2
        var += low * ((edges[0] - below) ** 2 + below**2)
        var += high * ((edges[-1] + above) ** 2 + above**2)
        best = abs(var).argmin()
        ends = float(self.edges[0]), -float(self.edges[-1])
        most = [end / 2.5 if end > 0 else math.inf for end in ends]
        return min(below[best], most[0]), min(above[best], most[1])

    def below(self, x: np.ndarray) -> np.ndarray:
        """Return the estimated share of values below points: exponential in the open cells.

        It is linear in the others, and normal without any.
        """
        if not len(self.edges):
            return np.array([math.erfc((self.mean - v) / (self.std * math.sqrt(2))) / 2 for v in x])
        (first, last), (low, high) = self.edges[[0, -1]], self.tails
        left = self.share[0] * np.exp(np.minimum(x - first, 0) / low)
        right = 1 - (1 - self.share[-1]) * np.exp(-np.maximum(x - last, 0) / high)
        inner = np.interp(x, self.edges, self.share)
        return np.where(x < first, left, np.where(x > last, right, inner))


@dataclass(frozen=True, eq=False)
class Look:
    """Answers of the sites.

    Attributes
    ----------
    columns : mapping
        Of each site by its name, its columns by their names.
    names : tuple of str
        The columns of numbers, over all sites.
    rows : mapping of str to int
        Each site's number of rows.
    sums : mapping of str to Sums
        Each site's sums of the columns of numbers.
    cells : mapping of str to tuple of Cells
        Each site's histograms of them.
    products : tuple or None
        Names of columns, the number of rows, and the mean of the products of each two columns,
        standardised; None if no site has rows enough, or there are more than `MOST_PRODUCTS`.
    ids : mapping of str to set of bytes
        Digests of each site's ids that other sites have, too; empty if sites tell none.
    """

    columns: Mapping[str, Mapping[str, Told]]
    names: tuple[str, ...]
    rows: Mapping[str, int]
    sums: Mapping[str, Sums]
    cells: Mapping[str, Sequence[Cells]] = field(default_factory=dict)
    products: tuple[tuple[str, ...], int, Tensor] | None = None
    ids: Mapping[str, Sequence[bytes]] = field(default_factory=dict)

    @functools.cached_property
    def total(self) -> Sums:
        """The sums over all sites."""
        return functools.reduce(operator.add, self.sums.values())

    def seen(self, site: str, name: str) -> float:
        """Return how many values of a column are in a site's sums."""
        counts = self.sums[site].seen
        return 0.0 if counts is None else float(counts[self.names.index(name)])

    def is_coded(self, name: str) -> bool:
        """Return whether a column holds 0 and 1 alone."""
        place = self.names.index(name)
        mean, var = float(self.total.mean[place]), float(self.total.var[place])
        return abs(var - mean * (1 - mean)) <= 1e-9

    def quantiles(self, name: str, at: Sequence[float]) -> np.ndarray:
        """Return quantiles of a column over all sites' rows.

        They are those of the estimated shares of `Cells.below`, over all sites. NaN where no
        histogram tells them, for 0 and 1, and where the largest site's shows few values: the cells
        of the least and the largest value are open, and a tail would be seen in them.
        """
        place = self.names.index(name)
        held = [(self.seen(site, name), cells[place]) for site, cells in self.cells.items()]
        parts = [(rows, cells) for rows, cells in held if rows and cells.std > 0]
        rows, largest = max(parts, key=lambda part: part[0], default=(0, None))
        few = largest is None or len(largest.edges) <= min(rows // TWO_VALUED, FEW)
        if self.is_coded(name) or few:
            return np.full(len(at), np.nan)
        ends = [c.mean + c.std * np.linspace(-5, 5, 81) for _, c in parts]
        points = np.unique(np.concatenate([*ends, *(c.edges for _, c in parts)]))
        below = sum(rows * cells.below(points) for rows, cells in parts)
        return np.interp(at, below / sum(rows for rows, _ in parts), points)


def look(ids: bool = False) -> Dialogue[Look]:
    """Ask for columns, sums, histograms and products in turn; return what the sites have told.

    With `ids` also for digests of ids. Each site is then told which of its own others have, too.

    Raises
    ------
    RunError
        If no site answers.
    """
    found = yield from _of_columns()
    if not ids:
        return found
    told: dict[str, list[bytes]] = {}
    yield Question(IDS, read_ids, beside=_keep(told))
    repeated = {site: held for site, held in shared(told).items() if held}
    if repeated:
        own = {site: {DIGESTS: b"".join(held)} for site, held in repeated.items()}
        yield Question(REPEATED, lambda metrics, most: None, own=own)
    return replace(found, ids=repeated)


def read_ids(metrics: Mapping[str, Any], most: int) -> list[bytes]:
    """Return the digests of an answer; an error if so many rows have fewer ids."""
    found = split(metrics[DIGESTS])
    if len(found) > most:
        raise ValueError(f"{len(found)} ids of {most} rows")
    return found


def _of_columns() -> Dialogue[Look]:
    told: dict[str, tuple[int, dict[str, Told]]] = {}
    sums: dict[str, Sums] = {}
    told_cells: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    cells: dict[str, tuple[Cells, ...]] = {}
    if not (yield Question("columns", read_columns, beside=_keep(told))):
        raise RunError("no node answered with its columns")
    kinds = [each for _, columns in told.values() for each in columns.items()]
    names = tuple(dict.fromkeys(name for name, each in kinds if each.kind == NUMBERS))
    columns = {site: held for site, (_, held) in told.items()}
    rows = {site: count for site, (count, _) in told.items()}
    if not names:
        return Look(columns, (), rows, {})
    beside = _keep(sums)
    yield from _naming(_sums.ask(len(names), missing=True, beside=beside), names)
    found = Look(columns, names, rows, sums)
    scale = Standardiser.from_sums(found.total)
    wide = [name for name, std in zip(names, scale.std.tolist(), strict=True) if 0 < std < math.inf]
    if not wide:
        return found
    config, edges = _scaled(scale, names, wide)
    read = functools.partial(read_histograms, edges=edges)
    yield Question("histograms", read, config, beside=_keep(told_cells))
    for site, held in told_cells.items():
        placed, own = dict(zip(wide, held, strict=True)), sums[site]
        none = np.empty(0), np.empty(0)
        scales = zip(names, own.mean.tolist(), own.var.sqrt().tolist(), strict=True)
        cells[site] = tuple(Cells(*placed.get(name, none), m, s) for name, m, s in scales)
    chosen = [
        name for name in wide if 2 * sum(found.seen(site, name) > 0 for site in sums) > len(sums)
    ]
    if not 2 <= len(chosen) <= MOST_PRODUCTS:
        return replace(found, cells=cells)
    config, _ = _scaled(scale, names, chosen)
    believed = functools.partial(read_products, columns=len(chosen), rows=sum(rows.values()))
    answers = yield Question(_sums.MOMENTS, believed, config)
    products = None
    if count := sum(rows for rows, _ in answers):
        mean = functools.reduce(operator.add, (each for _, each in answers)) / count
        products = tuple(chosen), count, mean
    return replace(found, cells=cells, products=products)


def _scaled(
    scale: Standardiser, names: Sequence[str], chosen: Sequence[str]
) -> tuple[dict[str, list[Any]], list[np.ndarray]]:
    """Return what a question says of some columns: names, means, deviations; and their grids."""
    places = [names.index(name) for name in chosen]
    mean, std = scale.mean[places].tolist(), scale.std[places].tolist()
    edges = [grid(*pair) for pair in zip(mean, std, strict=True)]
    return {"names": [*chosen], "mean": mean, "std": std}, edges


def _keep(kept: dict[str, Any]) -> Callable[[Mapping[str, Any]], Sequence[str]]:
    """Return what takes answers by site and keeps them; it has no lines of its own."""

    def keep(answers: Mapping[str, Any]) -> Sequence[str]:
        kept.clear()
        kept.update(sorted(answers.items()))
        return ()

    return keep


def _naming(dialogue: Dialogue[Sums], names: Sequence[str]) -> Dialogue[Sums]:
    """Hold a dialogue whose questions name columns too."""
    try:
        question = next(dialogue)
        while True:
            answers = yield replace(question, config={**question.config, "names": [*names]})
            question = dialogue.send(answers)
    except StopIteration as end:
        found: Sums = end.value
        return found


def read_columns(metrics: Mapping[str, Any], most: int) -> tuple[int, dict[str, Told]]:
    """Return a site's rows and its columns; an error if no table has them."""
    names, kinds, kept, missing, counts = (
        list(metrics[key]) for key in ("names", "kinds", "kept", "missing", "levels")
    )
    if not 0 < len(set(names)) == len(names) <= MOST_COLUMNS:
        raise ValueError(f"{len(names)} names of {len(set(names))} columns")
    levels = list(zip(metrics["level-names"], metrics["level-rows"], strict=True))
    if not ({*kinds} <= {*KINDS} and {*kept} <= {*KEPT} and sum(counts) == len(levels)):
        raise ValueError("kinds of columns that there are not")
    if not all(LEAST <= int(rows) <= most for _, rows in levels) or min(counts, default=0) < 0:
        raise ValueError(f"levels of which {most} rows have other counts")
    if not all(SOME <= int(rows) <= most for rows in missing):
        raise ValueError(f"missing cells of which {most} rows have other counts")
    found, ends = {}, np.cumsum(counts)
    for place, name in enumerate(names):
        own = dict(levels[ends[place] - counts[place] : ends[place]])
        found[str(name)] = Told(kinds[place], int(missing[place]), own, kept[place])
    return most, found


def read_histograms(
    metrics: Mapping[str, Any], most: int, edges: Sequence[np.ndarray]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the edges and counts of a site's histograms; an error if no rows have them."""
    sizes, places, cells = (
        list(map(int, metrics[key])) for key in ("edges", "places", "cell-rows")
    )
    found = []
    for held, size in zip(edges, sizes, strict=True):
        own, rows = np.array(places[:size], int), np.array(cells[: size + (size > 0)], float)
        places, cells = places[size:], cells[len(rows) :]
        if size < 0 or len(own) != size or len(rows) != size + (size > 0):
            raise ValueError("fewer cells than it says")
        if (np.diff(own, prepend=-1) <= 0).any() or (own >= len(held)).any():
            raise ValueError("edges that are none of the grid's")
        if (rows < LEAST).any() or rows.sum() > most:
            raise ValueError(f"cells of which {most} rows have other counts")
        found.append((held[own], rows))
    if places or cells:
        raise ValueError("more cells than columns have")
    return found


def read_products(
    metrics: Mapping[str, Any], most: int, columns: int, rows: float
) -> tuple[int, Tensor]:
    """Return rows and sums of products as `_sums.read_moments`; 0 of a site with too few rows."""
    if metrics["count"] == 0:
        return 0, torch.zeros(columns, columns, dtype=torch.float64)
    return _sums.read_moments(metrics, most, columns, rows)
