"""Rows with a class, coded as numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedbary.data.tables._frame import TARGET, Frame
from fedbary.data.tables._layout import Layout
from fedbary.data.tables._split import Split, prescribed, tenth_of_each_class
from fedbary.errors import CellError, SettingError
from fedbary.seeds import derive_seed


@dataclass(frozen=True, eq=False)
class Labelled:
    """A classification set in its own units.

    Attributes
    ----------
    name : str
        Where it is from.
    layout : Layout
        What the columns of ``x`` and the labels mean.
    x : Tensor
        Features, (N, D), finite float64; D is the number of ``layout.features``.
    y : Tensor
        Labels, (N,), int64 in 0..K-1 for K classes.
    splits : tuple of Split
        The splits that the source prescribes; empty if it prescribes none.
    """

    name: str
    layout: Layout
    x: Tensor
    y: Tensor
    splits: tuple[Split, ...] = ()

    @property
    def examples(self) -> tuple[Tensor, Tensor]:
        """All features and labels."""
        return self.x, self.y

    def parted(self, split: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return the numbers of a split's training rows, and its test features and labels."""
        parts = self.split(split)
        return parts.train, (self.x[parts.test], self.y[parts.test])

    def validation(self, targets: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw a tenth of each class's training rows."""
        return tenth_of_each_class(targets, rng)

    def split(self, number: int) -> Split:
        """Return a split by its number, from 0: a prescribed one, or a tenth of each class to test.

        Raises
        ------
        SettingError
            If there is no split of that number, or none can be drawn.
        """
        if split := prescribed(self.splits, number):
            return split
        rng = np.random.default_rng(derive_seed(number, "split"))
        tested = tenth_of_each_class(self.y.numpy(), rng)
        if not tested.any():
            raise SettingError(self.name, "no class of two rows", "two rows of some class")
        return Split.where(tested)


def encode(frame: Frame, layout: Layout) -> Labelled:
    """Code a frame's rows by a layout: numbers as they are, a level as 1 among 0s.

    Columns are found by name; those that the layout does not have are left out.

    Raises
    ------
    SettingError
        A column is missing, or a cell is no number, no level or no class of the layout (names
        row and column).
    """
    if missing := [column for column, _ in layout.columns if column not in frame.columns]:
        allowed = f"the federation's columns; missing: {', '.join(missing)}"
        raise SettingError(f"{frame.name}: columns", ", ".join(frame.columns), allowed)
    parts = [
        _levels(frame.name, column, frame.columns[column], levels)
        if levels
        else _numbers(frame.name, column, frame.columns[column])
        for column, levels in layout.columns
    ]
    labels = _index(f"{frame.name}: row {{}}, {TARGET}", frame.target, layout.classes)
    x = torch.from_numpy(np.concatenate(parts, axis=1))
    return Labelled(frame.name, layout, x, torch.from_numpy(labels), frame.splits)


def _numbers(name: str, column: str, values: np.ndarray) -> np.ndarray:
    if values.dtype == object:
        where = f"{name}: row 1, feature {column!r}"
        raise CellError(where, values[0], "a finite number, as the server's data hold there")
    return values[:, None]


def _levels(name: str, column: str, values: np.ndarray, levels: tuple[str, ...]) -> np.ndarray:
    index = _index(f"{name}: row {{}}, feature {column!r}", values, levels)
    return np.eye(len(levels))[index]


def _index(where: str, values: np.ndarray, names: tuple[str, ...]) -> np.ndarray:
    """Return the place among `names` of each value, (N,) int64."""
    places = {name: place for place, name in enumerate(names)}
    index = np.array([places.get(value, -1) for value in values.tolist()], dtype=np.int64)
    for row in np.flatnonzero(index < 0)[:1].tolist():
        allowed = f"{', '.join(names)}, which the server knows"
        raise CellError(where.format(row + 1), values.tolist()[row], allowed)
    return index
