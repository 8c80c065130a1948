"""Rows that belong together, such as those of a patient: they are dealt as one.

A group has a number, a hash of its name. So names leave no reader, and groups of two files compare.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedbary.errors import SettingError


def group_numbers(names: Iterable[object]) -> Tensor:
    """Return a number for each name, (N,) int64; equal names have equal numbers."""
    found = [hashlib.blake2b(str(name).encode(), digest_size=8).digest() for name in names]
    return torch.from_numpy(np.frombuffer(b"".join(found), np.int64).copy())


@dataclass(frozen=True, eq=False)
class Units:
    """Rows as they are dealt: those of a group are one unit, and others are one each.

    Parameters
    ----------
    rows : ndarray
        Numbers of the rows, (n,).
    unit : ndarray
        The unit of each row, (n,). Units are numbered in the order of their first rows.
    """

    rows: np.ndarray
    unit: np.ndarray

    @classmethod
    def of(cls, rows: np.ndarray, groups: Tensor | None) -> Units:
        """Return the units of some rows, given the group of each row of the data set."""
        if groups is None:
            return cls(rows, np.arange(len(rows)))
        held = groups.numpy()[rows]
        _, first, place = np.unique(held, return_index=True, return_inverse=True)
        return cls(rows, np.argsort(np.argsort(first))[place])

    @property
    def numbers(self) -> np.ndarray:
        """The numbers of the units, from 0."""
        return np.arange(self.unit.max(initial=-1) + 1)

    def strata(self, values: Tensor) -> np.ndarray:
        """Return the value that each unit is dealt by: its commonest class, or its mean number.

        `values` are those of all rows of the data set. The least of equally common classes counts.
        """
        held, count = values.numpy()[self.rows], len(self.numbers)
        if count == len(held):
            return held
        if held.dtype.kind == "f":
            return np.asarray(np.bincount(self.unit, held) / np.bincount(self.unit))
        classes = int(held.max()) + 1
        table = np.bincount(self.unit * classes + held, minlength=count * classes)
        return table.reshape(count, classes).argmax(1)

    def rows_of(self, units: np.ndarray) -> np.ndarray:
        """Return the rows of some units, in their order."""
        return self.rows[np.isin(self.unit, units)]


def id_repeats(groups: Tensor | None, group: str, id: str) -> tuple[str, ...]:
    """Return a line if rows have groups by an id that repeats, and not by the setting `group`."""
    if group or groups is None:
        return ()
    many = f"{len(groups)} rows have {len(groups.unique())} names"
    return (f"id={id} repeats: {many}. Rows of one name stay together, as with group={id}",)


def one_of_each(groups: Tensor, seed: int) -> Tensor:
    """Draw one row of each group: a mask (n,) for the rows' groups (n,).

    Rows of different groups are independent. So one row of each has the counts that binomial bounds
    and conformal ranks need, for a row of a new group (subsampling once: Dunn, Wasserman and
    Ramdas, Distribution-Free Prediction Sets for Two-Layer Hierarchical Models, JASA 2023).
    """
    order = np.random.default_rng(seed).permutation(len(groups))
    _, first = np.unique(groups.numpy()[order], return_index=True)
    drawn = torch.zeros(len(groups), dtype=torch.bool)
    drawn[torch.from_numpy(order[first])] = True
    return drawn


def require_apart(name: str, train: Tensor, test: Tensor) -> None:
    """Raise a SettingError if a group of the training rows is among those of the test rows."""
    if shared := len(np.intersect1d(train.numpy(), test.numpy())):
        allowed = "a test part of other groups, or a source that prescribes none"
        raise SettingError(f"{name}: group", f"{shared} groups in both parts", allowed)
