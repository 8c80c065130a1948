"""Which rows a site has answered from: no sums of its answers are those of a few rows.

A server that asks with all rows, and then without one, has that row: it is the difference of two
sums. Rows that were in the same answers are a block here. With numbers c_k of the server's choice
and answers of the sets of rows S_k,

    Σ_k c_k Σ_{i in S_k} f(i) = Σ_b (Σ_{k: b in S_k} c_k) Σ_{i in b} f(i),

a sum over blocks b. So a site answers only from rows that leave each block with as many rows as it
must have to answer at all. If they would not, it leaves more rows out, always the same.

A difference of two sums shows the rows of a level in a block alone, too. So each block has enough
rows of each level, or none. All these rows bear some answers and no more, see `fedbary.runs.sent`.

A row is known by a hash of all its cells. So a row that has changed is a new one.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from fedbary.data.digest import row_hashes
from fedbary.data.frame import Frame
from fedbary.data.grouping import group_numbers
from fedbary.data.sites import Limits
from fedbary.errors import SettingError
from fedbary.runs.sent import Sent
from fedbary.runs.whole import locked, read_tensors, write_tensors

ANSWERED = "answered.safetensors"
"""The file in a site's state folder that says which rows were in which answers."""


@dataclass(frozen=True, eq=False)
class Asked:
    """Rows that a site would answer from, and what it is asked for.

    Attributes
    ----------
    rows : ndarray
        Different hashes, (N,) int64, see `hashes_of`.
    marks : ndarray
        The rows of each mark, (N, J) bool: a level, or another value than the commonest. Sums
        of products show the rows of a mark alone.
    outcomes : ndarray
        The rows of each class, or with and without an event, (N, C) bool. A slope shows the sum of
        the rows of one, the same in each answer.
    columns : int
        Columns of the rows.
    words : str
        Further words of the question, such as its terms.
    """

    rows: np.ndarray
    marks: np.ndarray
    outcomes: np.ndarray
    columns: int
    words: str = ""


class Kept(NamedTuple):
    """The numbers of the rows that a site answers from; answers that they bear over all runs."""

    rows: np.ndarray
    bear: float


@dataclass(frozen=True, eq=False)
class Answered:
    """Sets of rows that a site has answered from.

    Attributes
    ----------
    rows : ndarray
        Hashes of all rows of these, (n,) int64 in their order.
    sets : ndarray
        The rows of each set, (k, n) bool.
    columns : ndarray
        The columns that each was asked for, (k,) int64.
    asked : ndarray
        Digest of what the server asked for each time, (k,) int64.
    """

    rows: np.ndarray
    sets: np.ndarray
    columns: np.ndarray
    asked: np.ndarray

    def apart(self, asked: Asked, kept: np.ndarray, limits: Limits, sent: Sent) -> np.ndarray:
        """Return which of some rows, a mask (N,), a site may answer from.

        Sums of p and of q columns have those of min(p, q) columns in common. So the blocks of each
        number of columns are those of the sets with as many or more.
        """
        few = sent.least(limits, 2) if len(self.sets) else 1
        for width, block, sizes in self._blocks(asked):
            least = fewest(limits, width)
            if len(self.sets):
                least = max(least, math.ceil(sent.bearing(limits) / 2 * each_answer(width)))
            of_outcomes = limits.min_cell if len(self.sets) else 1
            kept = _left_out(kept, asked, block, sizes, (least, few, of_outcomes))
        return kept

    def bear(self, asked: Asked, kept: np.ndarray, limits: Limits) -> float:
        """Return the answers that rows, a mask (N,), bear over all runs: `budget` m of m rows.

        Blocks bear twice as many, as each needs two.
        """
        if not limits.budget:
            return math.inf
        found = [asked.marks[kept].sum(0)]
        for width, block, sizes in self._blocks(asked):
            held = np.unique(block[block > 0])
            if np.count_nonzero(sizes) > 1:
                found += [2 * asked.marks[block == each].sum(0) for each in held]
                found.append(2 * sizes / each_answer(width))
        every = np.concatenate(found).astype(float)
        return limits.budget * float(every[every > 0].min(initial=math.inf))

    def _blocks(self, asked: Asked) -> list[tuple[int, np.ndarray, np.ndarray]]:
        """Return numbers of columns, with the block of each row (N,) and the rows of each block."""
        widths = sorted({asked.columns, *self.columns.clip(max=asked.columns).tolist()})
        places = self._places(asked.rows)
        return [(width, *_blocks(self.sets[self.columns >= width], places)) for width in widths]

    def _places(self, rows: np.ndarray) -> np.ndarray:
        """Return the place of each row among those of the sets, (N,); n for a row of none."""
        places = np.searchsorted(self.rows, rows)
        known = np.append(self.rows, 0)[places] == rows
        return np.where(known, places, len(self.rows))

    def again(self, question: int, rows: np.ndarray) -> np.ndarray | None:
        """Return which of some rows (N,) are in an earlier answer to a question, if any."""
        (same,) = np.nonzero(self.asked == question)
        return np.isin(rows, self.rows[self.sets[same[0]]]) if len(same) else None

    def and_of(self, rows: np.ndarray, columns: int, question: int) -> Answered:
        """Return these sets and another, the rows with some different hashes (N,)."""
        rows = np.sort(rows)
        every = np.sort(np.append(self.rows, rows[self._places(rows) == len(self.rows)]))
        sets = np.zeros((len(self.sets), len(every)), dtype=bool)
        sets[:, np.searchsorted(every, self.rows)] = self.sets
        one = np.zeros(len(every), dtype=bool)
        one[np.searchsorted(every, rows)] = True
        numbers = np.append(self.columns, columns), np.append(self.asked, question)
        return Answered(every, np.vstack([sets, one]), *numbers)


DIGITS = 16
HALF = 1 << DIGITS - 1
"""Last bits of a number's 64 that do not count, and half of them."""

NUMBERS = np.zeros(0, dtype=np.int64)
NOTHING = Answered(NUMBERS, np.zeros((0, 0), dtype=bool), NUMBERS, NUMBERS)
"""Of a site that has not answered yet."""


def _question(asked: Asked, limits: Limits) -> int:
    """Return a digest of what a site is asked for."""
    held = np.sort(asked.rows).tobytes() + f"{asked.columns} {asked.words} {limits}".encode()
    return int.from_bytes(hashlib.blake2b(held, digest_size=8).digest(), "little", signed=True)


def _blocks(sets: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the block of the row at each place, (N,), and the rows of each block, (B,).

    Block 0 has the rows of no set, at the place n too, and counts as empty. A block is known by the
    sum of its sets' random numbers.
    """
    weights = np.random.default_rng(0).integers(1, 2**63, len(sets), dtype=np.uint64)
    marks = np.append(weights @ sets, np.uint64(0))
    _, block, sizes = np.unique(marks, return_inverse=True, return_counts=True)
    sizes[0] = 0
    return block[places], sizes


def _left_out(
    kept: np.ndarray, asked: Asked, block: np.ndarray, sizes: np.ndarray, least: tuple[int, ...]
) -> np.ndarray:
    """Return a mask (N,) without rows that must leave, so that no block shows few rows.

    Each block then has the first of `least` rows inside and outside, or none. So has each mark in a
    block, with the second, and each outcome, with the third. Rows with the least hashes leave. Rows
    that are not among those asked for may have any mark.
    """
    kept, count = kept.copy(), -1
    parts = [np.ones((len(kept), 1), dtype=bool), asked.marks, asked.outcomes]
    every = np.concatenate(parts, 1)
    wanted = np.repeat(least, [part.shape[1] for part in parts])
    strange = sizes - np.bincount(block, minlength=len(sizes))
    while kept.sum() != count:
        count = kept.sum()
        for each in np.unique(block[kept]):
            own = np.flatnonzero(block == each)
            marks, old = every[own], each > 0
            held, inside = marks.sum(0), marks[kept[own]].sum(0)
            outside = held - inside
            some = outside > 0
            if strange[each] > 0:
                outside[0] += strange[each]
                some[:] = True
            gone = np.where(old & some, (wanted - outside).clip(0), 0)
            gone = np.where(inside - gone < wanted, inside, gone)
            for mark in np.flatnonzero(gone):
                rows = own[kept[own] & marks[:, mark]]
                more = gone[mark] - (inside[mark] - len(rows))
                kept[rows[np.argsort(asked.rows[rows])[: max(0, more)]]] = False
    return kept


def in_common(marks: np.ndarray, kept: np.ndarray, least: int) -> np.ndarray:
    """Return a mask (N,) without rows that have a mark, (N, J), that fewer than `least` have."""
    while True:
        rows = marks[kept].sum(0)
        gone = kept & marks[:, (rows > 0) & (rows < least)].any(1)
        if not gone.any():
            return kept
        kept = kept & ~gone


def unusual(values: np.ndarray, functions: int = 1) -> list[np.ndarray]:
    """Return which values (N,) some functions of theirs can be 0 without, as masks.

    With a constant, d functions can be 0 at any d values. So at most d + 1 different values are
    shown one by one. Of more, those beside the commonest d are, and all beside fewer of these once
    they are gone; such as are most of the values are not named.
    """
    found, counts = np.unique(values, return_counts=True)
    common = found[np.argsort(-counts, kind="stable")]
    if len(found) <= functions + 1:
        return [values == each for each in common]
    rest = [~np.isin(values, common[:count]) for count in range(1, functions + 1)]
    few = [mark for mark in rest if 2 * mark.sum() <= len(values)]
    return few + [~mark for mark in few]


def each_answer(columns: int) -> float:
    """Return how many numbers an answer has for each number of a row: slopes and products."""
    return (columns + 4) / 2


def fewest(limits: Limits, columns: int) -> int:
    """Return the rows that a site must have to answer with so many columns."""
    each = columns / limits.max_columns if limits.max_columns else math.inf
    return max(1, limits.min_rows, math.ceil(min(each, 2**53)))


@lru_cache(maxsize=2)
def hashes_of(table: Frame) -> np.ndarray:
    """Return a hash of each row's cells, (N,) int64, whatever the order of columns and rows.

    Equal rows have different hashes, always the same ones. Numbers count to ten digits, as a table
    that is written anew may have others behind.
    """
    parts = []
    for _, column in sorted(table.columns.items()):
        if column.is_text and column.texts is not None:
            names, place = np.unique(column.texts.astype(str), return_inverse=True)
            parts.append(group_numbers(names)[torch.from_numpy(place.ravel())])
        else:
            numbers = np.where(np.isnan(column.numbers), np.nan, column.numbers) + 0.0
            parts.append(torch.from_numpy(numbers.view(np.int64) + HALF >> DIGITS))
    rows = row_hashes(torch.stack(parts, 1)).numpy()
    order = rows.argsort(kind="stable")
    _, counts = np.unique(rows, return_counts=True)
    rows[order] += np.arange(len(rows)) - np.repeat(counts.cumsum() - counts, counts)
    return rows


def kept_apart(folder: Path, asked: Asked, limits: Limits, least: int | None = None) -> Kept:
    """Return the rows that a site answers from, once they are kept in its folder.

    Parameters
    ----------
    folder
        The site's state folder.
    asked
        Rows that it would answer from.
    limits
        What it tells at most.
    least
        Rows that each mark has at least; None for as many as bear the answers of a short run.

    Raises
    ------
    SettingError
        If a file of its earlier answers is damaged.
    """
    with locked(folder):
        told, sent = _read(folder / ANSWERED), Sent.read(folder)
        question = _question(asked, limits)
        kept = told.again(question, asked.rows)
        if kept is None:
            least = Sent().least(limits) if least is None else least
            kept, count = np.ones(len(asked.rows), dtype=bool), -1
            while kept.sum() != count:
                count = kept.sum()
                kept = told.apart(asked, in_common(asked.marks, kept, least), limits, sent)
            told = told.and_of(asked.rows[kept], asked.columns, question)
            if kept.any():
                _write(folder / ANSWERED, told)
    return Kept(np.flatnonzero(kept), told.bear(asked, kept, limits))


def _read(file: Path) -> Answered:
    if not file.exists():
        return NOTHING
    try:
        found, _ = read_tensors(file)
        return Answered(*(found[each.name].numpy() for each in fields(Answered)))
    except (OSError, ValueError, LookupError) as error:
        allowed = "the file as the site wrote it; without it the site would tell more"
        raise SettingError(str(file), error, allowed) from None


def _write(file: Path, held: Answered) -> None:
    found = {each.name: torch.from_numpy(getattr(held, each.name)) for each in fields(held)}
    write_tensors(file, found)
