"""Rules of a site in a look: the numbers that it tells, and those that it keeps.

A message holds no minimum, no maximum, no count of 1 to 4 rows and no name that so few rows have:

- A column with one to four missing cells counts five: some of its values stay out, always the same.
- Levels in fewer than five rows are counted together, with further levels until they are five rows.
- A column has no sums if one to four values differ from all others, or if one value has most of the
  sum of squares.
- Cells of a histogram merge with their neighbours until they hold ten rows or more. The first and
  the last are open. Their edges lie on a grid that the site's own rows do not set.
- Products of columns need 20 rows, and 10 rows for each column.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fedbary.data.frame import MAX_LEVELS, Column, Frame, disguised, text_of
from fedbary.data.sentinels import sentinels
from fedbary.data.tables import Choice
from fedbary.data.tables._layout import FEW, is_number, numbers_rows
from fedbary.tasks import _sums
from fedbary.texts import shown

LEAST = 5
"""Fewest rows that a count or a name stands for."""

ROWS_A_CELL = 10
"""Rows for each cell of a histogram, at least."""

FINEST = 0.25
"""Least standard deviation that sets a grid, in those of the site's column."""

ROWS_OF_PRODUCTS = 20, 10
"""Fewest rows of which products leave a site, in all and for each column."""

DOMINATES = 0.9
"""Share of the sum of squares about the median from which on one value would be known by it."""

FAR = 3.0
"""Ranges of all other values from which on one to four cells are said to the site itself."""

NUMBERS, LEVELS, EMPTY, DATES, TEXTS = "numbers", "levels", "empty", "dates", "texts"
ROW_NAMES, MIXED, AS_TEXT = "row names", "numbers and words", "numbers as text"
KINDS = (NUMBERS, LEVELS, EMPTY, DATES, TEXTS, ROW_NAMES, MIXED, AS_TEXT)
"""Kinds of columns."""

NEARLY_CONSTANT, FAR_CELL = "nearly constant", "a cell far from all others"
KEPT = ("", NEARLY_CONSTANT, FAR_CELL)
"""Why a column of numbers has no sums; "" if it has."""

RARE = ""
"""The name under which rare levels are counted together."""

SOME = -1
"""The count that stands for one to four missing cells."""


@dataclass(frozen=True, eq=False)
class Told:
    """A site's answer on a column.

    Attributes
    ----------
    kind : str
        One of `KINDS`.
    missing : int
        Number of missing cells; `SOME` for one to four.
    levels : mapping of str to int
        The levels' rows; of rare ones together under `RARE`.
    kept : str
        One of `KEPT`.
    numbers : ndarray
        At the site alone: the values that may enter sums, (N,) float64; NaN for others.
    """

    kind: str
    missing: int = 0
    levels: Mapping[str, int] = field(default_factory=dict)
    kept: str = ""
    numbers: np.ndarray = field(default_factory=lambda: np.empty(0))


def told_of(name: str, column: Column) -> Told:
    """Return what may be told of a column."""
    there = ~column.missing & (np.isfinite(column.numbers) | column.is_text)
    absent, nothing = int((~there).sum()), np.full(len(there), np.nan)
    if column.unfit:
        return Told(DATES if "date" in column.unfit else TEXTS, numbers=nothing)
    if there.sum() < LEAST:
        return Told(EMPTY, len(there), numbers=nothing)
    if 0 < absent < LEAST:
        order = np.random.default_rng(0).permutation(len(there))
        there[order[there[order]][: LEAST - absent]] = False
    missing = absent if absent == 0 or absent >= LEAST else SOME
    if not column.is_text:
        return _of_numbers(name, np.where(there, column.numbers, np.nan), missing)
    assert column.texts is not None
    names, counts = np.unique(column.texts[there].astype(str), return_counts=True)
    kind = _kind_of(names.tolist(), int(there.sum()))
    levels = dict(zip(names.tolist(), counts.tolist(), strict=True)) if kind == LEVELS else {}
    return Told(kind, missing, common(levels), numbers=nothing)


def _of_numbers(name: str, values: np.ndarray, missing: int) -> Told:
    held = values[np.isfinite(values)]
    if numbers_rows(name, held):
        return Told(ROW_NAMES, missing, numbers=np.full(len(values), np.nan))
    others = len(held) - int(np.unique(held, return_counts=True)[1].max())
    squares = np.square(held - np.median(held))
    kept = NEARLY_CONSTANT if 0 < others < LEAST else ""
    if not kept and squares.max() > DOMINATES * squares.sum():
        kept = FAR_CELL
    return Told(NUMBERS, missing, {}, kept, np.full(len(values), np.nan) if kept else values)


def _kind_of(names: Sequence[str], rows: int) -> str:
    """Return the kind of a column of text with these different cells."""
    if instead := disguised(names):
        return DATES if "dates" in instead else AS_TEXT
    if 2 * sum(map(is_number, names)) > len(names):
        return MIXED
    return TEXTS if len(names) > min(MAX_LEVELS, max(FEW, rows / 2)) else LEVELS


def common(levels: Mapping[str, int]) -> dict[str, int]:
    """Return levels with their rows; those in fewer than `LEAST` rows are `RARE` together.

    If these have fewer rows themselves, the next rarest level joins them.
    """
    rare, kept = 0, {}
    for name, rows in sorted(levels.items(), key=lambda level: level[1]):
        if rows < LEAST or 0 < rare < LEAST:
            rare += rows
        else:
            kept[name] = rows
    return {**{name: kept[name] for name in sorted(kept)}, **({RARE: rare} if rare else {})}


def table_told(table: Frame, choice: Choice) -> dict[str, Told]:
    """Return what may be told of a table's columns, by name; those for ids and groups are none."""
    left = {*choice.leave_out, choice.id, choice.group}
    return {
        name: told_of(name, column)
        for name, column in table.columns.items()
        if name not in left and (not choice.columns or name in choice.columns)
    }


def own_lines(table: Frame, names: Iterable[str]) -> Iterator[str]:
    """Yield lines for the site's own log: cells of its columns that lie far from all others."""
    for name in names:
        values = table.columns[name].numbers
        there = np.flatnonzero(np.isfinite(values))
        order = there[np.argsort(values[there])]
        far = [*sentinels(values)]
        for few in range(1, min(LEAST, len(order) // 4)):
            for end, rest in ((order[:few], order[few:]), (order[-few:], order[:-few])):
                gap = abs(values[rest][:, None] - values[end]).min()
                if gap > FAR * np.ptp(values[rest]) > 0:
                    far += values[end].tolist()
        for value in dict.fromkeys(far):
            rows = np.flatnonzero(values == value)
            said = f"in {len(rows)} rows, the first is {rows[0] + 1}"
            yield f"column {name}: {text_of(value)} lies far from all others, {said}"


def answer(question: str, told: Mapping[str, Told], asked: Mapping[str, Any]) -> dict[str, Any]:
    """Answer a question of a look, see `fedbary.tasks._look.dialogue`.

    Raises
    ------
    ValueError
        If there is no such question, or it names a column twice.
    """
    if question == "columns":
        return columns_told(told)
    rows, names = len(next(iter(told.values())).numbers), list(asked["names"])
    if len(set(names)) < len(names):
        raise ValueError("a question that names a column twice")
    nothing = np.full(rows, np.nan)
    columns = np.stack([told[name].numbers if name in told else nothing for name in names], 1)
    if question == _sums.NAME:
        return _sums.answer(torch.from_numpy(columns), asked)
    if question == "histograms":
        return {"count": rows, **histograms(columns, asked["mean"], asked["std"])}
    if question == _sums.MOMENTS:
        return _sums.answer_moments(torch.from_numpy(complete(columns)), asked)
    raise ValueError(f"a look has no question {question!r}")


IDS, REPEATED, DIGESTS = "ids", "ids-repeated", "digests"
"""Questions for digests of ids, and which of these other sites have; the entry that holds them."""

WORDS = ("names", "kinds", "kept", "level-names", DIGESTS)
"""The entries of an answer that are texts or bytes."""


def columns_told(told: Mapping[str, Told]) -> dict[str, Any]:
    """Return columns as an answer has them: lists, a place for each column and for each level."""
    levels = [(shown(name), rows) for each in told.values() for name, rows in each.levels.items()]
    return {
        "names": [shown(name) for name in told],
        "kinds": [each.kind for each in told.values()],
        "kept": [each.kept for each in told.values()],
        "missing": [each.missing for each in told.values()],
        "levels": [len(each.levels) for each in told.values()],
        "level-names": [name for name, _ in levels],
        "level-rows": [rows for _, rows in levels],
    }


def grid(mean: float, std: float) -> np.ndarray:
    """Return the edges that a histogram may have, in their order.

    Eighths of an octave, ±2^(k/8) from 2^−20 to 2^40, serve skewed columns. Columns far from 0 need
    (k + ½) s too, to six standard deviations from the mean: s is the power of 2 below an eighth of
    one, so that whole numbers lie between edges.
    """
    octaves = np.exp2(np.arange(-160, 321) / 8)
    step = float(np.exp2(np.floor(np.log2(std / 8))))
    even = (np.round(mean / step) + np.arange(-96, 97) + 0.5) * step
    return np.sort(np.r_[even[abs(even - mean) <= 6 * std], -octaves, 0.0, octaves])


def histogram(values: np.ndarray, edges: np.ndarray) -> tuple[list[int], list[int]]:
    """Return the places of some edges, and the rows in the cells between them and beyond.

    No cell has fewer rows than `ROWS_A_CELL`. Both lists are empty if that leaves one cell. A value
    on an edge counts above it. Of edges between the same two values the middle one is taken.
    """
    ranks, below = np.searchsorted(np.sort(values), edges), 0
    places, counts = [], []
    while (place := int(np.searchsorted(ranks, below + ROWS_A_CELL))) < len(edges):
        rank = int(ranks[place])
        if len(values) - rank < ROWS_A_CELL:
            break
        places.append((place + int(np.searchsorted(ranks, rank, "right")) - 1) // 2)
        counts.append(rank - below)
        below = rank
    return places, [*counts, len(values) - below] if places else []


def histograms(
    columns: np.ndarray, mean: Sequence[float], std: Sequence[float]
) -> dict[str, list[int]]:
    """Return the histograms of columns (N, C): the number of edges of each, and all in a row.

    A column has none if the server asks for a grid of steps that are too small, see `FINEST`.
    """
    found = []
    for column, m, s in zip(columns.T, mean, std, strict=True):
        values = column[np.isfinite(column)]
        is_told = len(values) > 0 and s > FINEST * values.std()
        found.append(histogram(values, grid(m, s)) if is_told else ([], []))
    return {
        "edges": [len(places) for places, _ in found],
        "places": [place for places, _ in found for place in places],
        "cell-rows": [rows for _, cells in found for rows in cells],
    }


def complete(columns: np.ndarray) -> np.ndarray:
    """Return the rows (n, C) without a missing value; none if they are too few for products.

    They are all N rows, or at most N − 5.
    """
    whole = np.isfinite(columns).all(1)
    if 0 < (~whole).sum() < LEAST:
        order = np.random.default_rng(0).permutation(len(whole))
        whole[order[whole[order]][: LEAST - int((~whole).sum())]] = False
    least, each = ROWS_OF_PRODUCTS
    return columns[whole if whole.sum() >= max(least, each * columns.shape[1]) else whole[:0]]
