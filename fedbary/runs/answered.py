"""Which rows a site has answered from: no sums of its answers are those of a few rows.

A server that asks with all rows, and then without one, has that row: it is the difference of two
sums. Rows that were in the same answers are a block here. With numbers c_k of the server's choice
and answers of the sets of rows S_k,

    Σ_k c_k Σ_{i in S_k} f(i) = Σ_b (Σ_{k: b in S_k} c_k) Σ_{i in b} f(i),

a sum over blocks b. So a site answers only from rows that leave each block with as many rows as it
must have to answer at all. If they would not, it leaves more rows out, always the same.

A row is known by a hash of all its cells. So a row that has changed is a new one.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from fedbary.data.digest import row_hashes
from fedbary.data.frame import Frame
from fedbary.data.grouping import group_numbers
from fedbary.data.sites import Limits
from fedbary.errors import SettingError
from fedbary.runs.whole import locked, read_tensors, write_tensors

ANSWERED = "answered.safetensors"
"""The file in a site's state folder that says which rows were in which answers."""


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

    def apart(self, rows: np.ndarray, columns: int, limits: Limits) -> np.ndarray:
        """Return the rows that a site may answer from: a mask (N,) for different hashes (N,).

        Sums of p and of q columns have those of min(p, q) columns in common. So the blocks of each
        number of columns are those of the sets with as many or more.
        """
        widths = sorted({columns, *self.columns.clip(max=columns).tolist()})
        places = self._places(rows)
        blocks = [_blocks(self.sets[self.columns >= width], places) for width in widths]
        kept, count = np.ones(len(rows), dtype=bool), -1
        while kept.sum() != count:
            count = kept.sum()
            for width, (block, sizes) in zip(widths, blocks, strict=True):
                _leave_out(kept, rows, block, sizes, fewest(limits, width))
        return kept

    def _places(self, rows: np.ndarray) -> np.ndarray:
        """Return the place of each row among those of the sets, (N,); n for a row of none."""
        places = np.searchsorted(self.rows, rows)
        known = np.append(self.rows, 0)[places] == rows
        return np.where(known, places, len(self.rows))

    def again(self, asked: int, rows: np.ndarray) -> np.ndarray | None:
        """Return which of some rows (N,) are in an earlier answer to a question, if any."""
        (same,) = np.nonzero(self.asked == asked)
        return np.isin(rows, self.rows[self.sets[same[0]]]) if len(same) else None

    def and_of(self, rows: np.ndarray, columns: int, asked: int) -> Answered:
        """Return these sets and another, the rows with some different hashes (N,)."""
        rows = np.sort(rows)
        every = np.sort(np.append(self.rows, rows[self._places(rows) == len(self.rows)]))
        sets = np.zeros((len(self.sets), len(every)), dtype=bool)
        sets[:, np.searchsorted(every, self.rows)] = self.sets
        one = np.zeros(len(every), dtype=bool)
        one[np.searchsorted(every, rows)] = True
        numbers = np.append(self.columns, columns), np.append(self.asked, asked)
        return Answered(every, np.vstack([sets, one]), *numbers)


DIGITS = 16
HALF = 1 << DIGITS - 1
"""Last bits of a number's 64 that do not count, and half of them."""

NUMBERS = np.zeros(0, dtype=np.int64)
NOTHING = Answered(NUMBERS, np.zeros((0, 0), dtype=bool), NUMBERS, NUMBERS)
"""Of a site that has not answered yet."""


def _question(rows: np.ndarray, columns: int, limits: Limits) -> int:
    """Return a digest of what a site is asked for."""
    held = np.sort(rows).tobytes() + f"{columns} {limits}".encode()
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


def _leave_out(
    kept: np.ndarray, rows: np.ndarray, block: np.ndarray, sizes: np.ndarray, least: int
) -> None:
    """Take rows out of a mask (N,) until each block has `least` rows inside and outside, or none.

    Those with the least hashes leave.
    """
    inside = np.bincount(block[kept], minlength=len(sizes))
    outside = sizes - inside
    gone = np.where(outside > 0, (least - outside).clip(0), 0)
    gone = np.where(inside - gone < least, inside, gone)
    kept &= (gone < inside)[block]
    for each in np.flatnonzero((gone > 0) & (gone < inside)):
        held = np.flatnonzero(kept & (block == each))
        kept[held[np.argpartition(rows[held], gone[each] - 1)[: gone[each]]]] = False


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


def kept_apart(
    folder: Path,
    rows: np.ndarray,
    columns: int,
    limits: Limits,
    common: Callable[[np.ndarray], np.ndarray] = np.ones_like,
) -> np.ndarray:
    """Return the numbers of the rows that a site answers from, once they are kept in its folder.

    Parameters
    ----------
    folder
        The site's state folder.
    rows
        Hashes of the rows that it would answer from, (N,), see `hashes_of`.
    columns
        Columns that it is asked for.
    limits
        What it tells at most.
    common
        Another rule: from numbers of rows a mask of those that may stay.

    Raises
    ------
    SettingError
        If the file of its earlier answers is damaged.
    """
    kept, count = np.arange(len(rows)), -1
    with locked(folder):
        told = _read(folder / ANSWERED)
        kept = kept[common(kept).astype(bool)]
        asked = _question(rows[kept], columns, limits)
        if (found := told.again(asked, rows[kept])) is not None:
            return kept[found]
        while len(kept) != count:
            count = len(kept)
            kept = kept[told.apart(rows[kept], columns, limits)]
            kept = kept[common(kept).astype(bool)]
        if len(kept):
            _write(folder / ANSWERED, told.and_of(rows[kept], columns, asked))
    return kept


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
