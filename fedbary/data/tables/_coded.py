"""Rows coded as numbers by the layout that all sites agree on, with a class or a number each."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from fedbary.data.deal import Split, prescribed, tenth, tenth_of_all, tenth_of_each_class
from fedbary.data.frame import TARGET, Column, Frame, disguised
from fedbary.data.tables._layout import Layout, columns_of, indicated, require, require_plain
from fedbary.errors import CellError, SettingError
from fedbary.seeds import derive_seed

_ALSO = {"True": "1", "False": "0", "1": "True", "0": "False"}
"""Names that stand for each other where only one of them is known."""


def features_of(frame: Frame, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    """Code a frame's rows: numbers as they are, a level as 1 among 0s.

    Columns are found by name; those that the layout does not have are left out.

    Returns
    -------
    features : ndarray
        (N, D) float64; NaN where a value is missing and the layout does not refuse that.
    unknown : ndarray
        (N,) bool: rows with a level that the layout does not know, of which that column is all 0.

    Raises
    ------
    SettingError
        A column is missing, or a cell is missing or no number (names row and column).
    """
    held = frame.columns
    if missing := [column for column, _ in layout.columns if column not in held]:
        allowed = f"the federation's columns; missing: {', '.join(missing)}"
        told = f"{len(held)} columns; missing: {', '.join(missing)}"
        raise CellError(f"{frame.name}: columns", ", ".join(held), allowed, told)
    unknown = np.zeros(frame.count, dtype=bool)
    parts = []
    for column, levels in layout.columns:
        where, cells = f"feature {column!r}", held[column]
        require_plain(frame.name, where, cells)
        if layout.missing == "refuse":
            require(frame.name, where, cells, cells.missing, "")
        if levels:
            places = places_of(cells, levels)
            one_hot = (places[:, None] == np.arange(len(levels))).astype(np.float64)
            one_hot[cells.missing] = np.nan
            parts.append(one_hot)
            unknown |= (places < 0) & ~cells.missing
        else:
            bad = ~np.isfinite(cells.numbers) & ~cells.missing
            allowed = "a finite number, as the server's data hold there"
            require(frame.name, where, cells, bad, allowed)
            parts.append(cells.numbers[:, None])
    parts += [held[column].missing[:, None].astype(np.float64) for column in layout.indicated]
    return np.concatenate(parts, axis=1), unknown


def places_of(held: Column, names: Sequence[str]) -> np.ndarray:
    """Return the place among `names` of each cell, (N,) int64; −1 where it is none of them."""
    if held.texts is None:
        return np.full(len(held.missing), -1)
    places = {text: place for place, text in enumerate(names)}
    for text, other in _ALSO.items():
        if text not in places and other in names:
            places[text] = places[other]
    return np.array([places.get(text, -1) for text in held.texts.tolist()], dtype=np.int64)


def without(frame: Frame, layout: Layout, unknown: np.ndarray) -> Frame:
    """Return a frame without its rows of unknown levels, and say in which columns they lie.

    Raises
    ------
    SettingError
        There is no other row.
    """
    if not unknown.any():
        return frame
    found = []
    for column, levels in layout.columns:
        where, held = f"feature {column!r}", frame.columns[column]
        strange = (places_of(held, levels) < 0) & ~held.missing if levels else unknown[:0]
        if strange.all() and len(strange):
            require(
                frame.name, where, held, strange, f"{', '.join(levels)}, which the server knows"
            )
        if strange.any():
            found.append(f"{column} ({int(strange.sum())})")
    said = f"{int(unknown.sum())} of {frame.count} rows hold a level that the federation does not "
    said += f"know, and are left out: {', '.join(found)}"
    if unknown.all():
        raise CellError(frame.name, said, "a row with levels that the server knows")
    warnings.warn(f"{frame.name}: {said}", stacklevel=2)
    return frame.rows(~unknown)


@dataclass(frozen=True, eq=False)
class Coded(ABC):
    """A set of rows in its own units.

    Attributes
    ----------
    name : str
        Its source.
    layout : Layout
        Meaning of the columns of ``x`` and of the labels.
    x : Tensor
        Features, (N, D), finite float64; D is the number of ``layout.features``.
    y : Tensor
        Targets, (N,).
    splits : tuple of Split
        The splits that the source prescribes; empty if it prescribes none.
    unused : tuple of str
        Columns of the source that the layout does not have.
    """

    name: str
    layout: Layout
    x: Tensor
    y: Tensor
    splits: tuple[Split, ...] = ()
    unused: tuple[str, ...] = ()

    @property
    def examples(self) -> tuple[Tensor, Tensor]:
        """All features and targets."""
        return self.x, self.y

    @property
    def strata(self) -> Tensor:
        """Values that rows are dealt by: their targets."""
        return self.y

    def parted(self, split: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return the numbers of a split's training rows, and its test features and targets."""
        parts = self.split(split)
        return parts.train, (self.x[parts.test], self.y[parts.test])

    def split(self, number: int) -> Split:
        """Return a split by its number, from 0: a prescribed one, or else a drawn tenth to test.

        Raises
        ------
        SettingError
            If there is no split of that number, or none can be drawn.
        """
        if split := prescribed(self.splits, number):
            return split
        return Split.where(self.tested(np.random.default_rng(derive_seed(number, "split"))))

    @abstractmethod
    def tested(self, rng: np.random.Generator) -> np.ndarray:
        """Draw the rows that are for testing: a mask (N,)."""

    @abstractmethod
    def validation(self, targets: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw validation rows of training rows with these targets: a mask."""


@dataclass(frozen=True, eq=False)
class Labelled(Coded):
    """A classification set in its own units; labels are int64 in 0..K-1 for K classes."""

    def tested(self, rng: np.random.Generator) -> np.ndarray:
        """Draw a tenth of each class."""
        tested = tenth_of_each_class(self.y.numpy(), rng)
        if not tested.any():
            raise SettingError(self.name, "no class of two rows", "a class with two rows")
        return tested

    def validation(self, targets: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw a tenth of each class's training rows."""
        return tenth_of_each_class(targets, rng)


@lru_cache(maxsize=4)
def with_test(held: Labelled, test: Labelled) -> Labelled:
    """Return rows of which those of another set, coded alike, are tested."""
    train = torch.arange(len(held.y))
    split = Split(train, len(train) + torch.arange(len(test.y)))
    x, y = torch.cat([held.x, test.x]), torch.cat([held.y, test.y])
    return replace(held, x=x, y=y, splits=(split,))


def encode(frame: Frame, layout: Layout) -> Labelled:
    """Code a frame's rows and classes by a layout; rows with a level unknown to it are left out.

    Raises
    ------
    SettingError
        As in `features_of`; or a class is none of the layout's (names the row).
    """
    x, unknown = features_of(frame, layout)
    labels = labels_of(frame, layout)
    known = without(frame, layout, unknown)
    features, y = (torch.from_numpy(part[~unknown]) for part in (x, labels))
    return Labelled(frame.name, layout, features, y, known.splits, layout.unused(frame.columns))


def labels_of(frame: Frame, layout: Layout) -> np.ndarray:
    """Return the place of each row's class in a layout, (N,) int64.

    Raises
    ------
    SettingError
        A class is missing or none of the layout's.
    """
    assert frame.target is not None
    require_plain(frame.name, TARGET, frame.target)
    labels = places_of(frame.target, layout.classes)
    require(frame.name, TARGET, frame.target, frame.target.missing, "")
    allowed = f"{', '.join(layout.classes)}, which the server knows"
    require(frame.name, TARGET, frame.target, labels < 0, allowed)
    return labels


@dataclass(frozen=True, eq=False)
class Table(Coded):
    """A regression set in its own units; targets are finite float64, and there are no classes."""

    @property
    def features(self) -> tuple[str, ...]:
        """Name of each column of ``x``."""
        return self.layout.features

    def tested(self, rng: np.random.Generator) -> np.ndarray:
        """Draw a tenth of the rows."""
        return tenth(len(self.y), rng)

    def validation(self, targets: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw a tenth of the training rows."""
        return tenth_of_all(targets, rng)


def measured(held: Frame, layout: Layout | None = None, missing: str = "refuse") -> Table:
    """Return the regression set of a frame.

    Parameters
    ----------
    held : Frame
        With the target.
    layout : Layout
        The federation's layout, which codes a site's own data; rows with a level unknown to it are
        left out. The default is the frame's own layout; it drops constant columns with a warning.
    missing : str
        Treatment of missing values in that layout.

    Raises
    ------
    SettingError
        A cell is missing or not finite; the error names the row, counted from 1. Without a given
        layout also: the target or every feature is constant, or there is one row.
    """
    assert held.target is not None
    target, values = held.target, held.target.numbers
    require_plain(held.name, TARGET, target)
    if not np.isfinite(values).any() and not target.missing.all():
        assert target.texts is not None
        allowed = disguised(target.texts) or "a column of numbers; task=tables predicts classes"
        raise CellError(f"{held.name}: {TARGET}", target.cell(0), allowed)
    require(held.name, TARGET, target, ~np.isfinite(values), "a finite number")
    if np.spacing(np.abs(values).max()) > np.ptp(values) / 1000 > 0:
        allowed = "numbers that double precision tells apart: subtract a constant"
        raise CellError(f"{held.name}: {TARGET}", target.cell(0), allowed)
    chosen = layout or _own_layout(held, missing)
    x, unknown = features_of(held, chosen)
    known = without(held, chosen, unknown)
    features, targets = (torch.from_numpy(part[~unknown]) for part in (x, values))
    return Table(held.name, chosen, features, targets, known.splits, chosen.unused(held.columns))


def _own_layout(held: Frame, missing: str) -> Layout:
    assert held.target is not None
    if held.count < 2:
        features = f"{held.count} rows, {len(held.columns)} features"
        raise SettingError(held.name, features, "at least 2 and 1")
    columns = dict(columns_of(held, missing))
    constant = [name for name in columns if _is_constant(held.columns[name])]
    if np.ptp(held.target.numbers) == 0 or len(constant) == len(columns):
        what = "every feature" if len(constant) == len(columns) else "the target"
        allowed = "at least one feature and a target that vary"
        raise SettingError(held.name, f"{what} is constant", allowed)
    if constant:
        said = f"{held.name}: constant features are left out: {', '.join(constant)}"
        warnings.warn(said, stacklevel=2)
    varying = {name: levels for name, levels in columns.items() if name not in constant}
    return Layout(tuple(varying.items()), (), missing, indicated(held, varying, missing))


def _is_constant(column: Column) -> bool:
    held = column.texts if column.is_text and column.texts is not None else column.numbers
    return len(set(held[~column.missing].tolist())) == 1
