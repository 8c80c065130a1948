"""Rows to train on and rows to test on: prescribed by a source, or drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedbary.errors import SettingError

TEST_FRACTION = 0.1


@dataclass(frozen=True, eq=False)
class Split:
    """Rows to train on and rows to test on, int64 indices into a table."""

    train: Tensor
    test: Tensor

    @classmethod
    def where(cls, tested: np.ndarray) -> Split:
        """Return the split that tests the rows where a mask (N,) is true."""
        return cls(*(torch.from_numpy(np.flatnonzero(mask)) for mask in (~tested, tested)))


def prescribed(splits: Sequence[Split], number: int) -> Split | None:
    """Return the split of that number, from 0; None if the source prescribes none.

    Raises
    ------
    SettingError
        If there are splits and none of that number, or the number is negative.
    """
    if number in range(len(splits)):
        return splits[number]
    if splits or number < 0:
        last = f"0 to {len(splits) - 1}" if splits else "a whole number from 0"
        raise SettingError("split", number, last)
    return None


def tenth(count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw a tenth of the rows, one at least: a mask (count,)."""
    mask = np.zeros(count, dtype=bool)
    mask[rng.permutation(count)[: max(1, round(TEST_FRACTION * count))]] = True
    return mask


def tenth_of_each_class(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw a tenth of each class's rows: a mask (N,) for labels (N,).

    From a class with two rows or more at least one row is drawn and at least one is not, so that
    rare classes are trained on and tested. From a class of one row none is drawn.
    """
    mask = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        if len(rows) > 1:
            mask[rows[tenth(len(rows), rng)]] = True
    return mask


def checked_split(name: str, number: int, count: int, train: np.ndarray, test: np.ndarray) -> Split:
    """Return the split that row numbers of a table of `count` rows describe.

    Raises
    ------
    SettingError
        If a part is empty, the parts overlap, or a number names no row.
    """
    allowed = f"different whole numbers from 0 to {count - 1}, some to train on and some to test on"
    both = np.concatenate([np.ravel(train), np.ravel(test)])
    right = len(train) and len(test) and both.dtype.kind in "iu" and both.min() >= 0
    if not right or both.max() >= count or len(np.unique(np.ravel(test))) < np.size(test):
        raise SettingError(f"{name}: split {number}", _brief(both), allowed)
    if np.isin(test, train).any():
        shared = f"row {int(test[np.isin(test, train)][0])} in both parts"
        raise SettingError(f"{name}: split {number}", shared, allowed)
    return Split(*(torch.from_numpy(part.astype(np.int64)) for part in (train, test)))


def _brief(rows: np.ndarray) -> str:
    return f"{rows.min()} to {rows.max()}, {rows.dtype}" if rows.size else "no rows"
