"""A table as its source has it: named columns, and a target for each row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbary.data.cell_words import name_of, plain
from fedbary.data.column import Column, column
from fedbary.data.split import Split, checked_split
from fedbary.errors import CellError, SettingError
from fedbary.texts import SURROGATE, shown

if TYPE_CHECKING:
    from pandas import DataFrame

Splits = Sequence[tuple[np.ndarray, np.ndarray]]

TARGET = "target"
"""Name in errors of the column that is predicted."""


@dataclass(frozen=True, eq=False)
class Frame:
    """N rows, before they are coded as numbers.

    Attributes
    ----------
    name : str
        Their source.
    columns : Mapping[str, Column]
        Columns that may be inputs, by name, (N,) each.
    target : Column or None
        Values to predict, (N,); None if the source names none.
    splits : tuple of Split
        The splits that the source prescribes; empty if it prescribes none.
    classes : tuple of str
        The classes in the order that the source gives them; empty if it gives none.
    """

    name: str
    columns: Mapping[str, Column]
    target: Column | None
    splits: tuple[Split, ...] = ()
    classes: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """N."""
        return len(next(iter(self.columns.values())).missing)

    def rows(self, kept: np.ndarray) -> Frame:
        """Return some of the rows; splits, which number all of them, are gone."""
        columns = {name: held.rows(kept) for name, held in self.columns.items()}
        target = None if self.target is None else self.target.rows(kept)
        return replace(self, columns=columns, target=target, splits=())


def frame(
    name: str,
    columns: Mapping[str, Any],
    target: Any,
    splits: Splits = (),
    classes: Sequence[str] = (),
) -> Frame:
    """Return the frame that columns and targets describe.

    Parameters
    ----------
    name : str
        Their source, for errors.
    columns : Mapping of str to ndarray or Series
        (N,) numbers or text.
    target : ndarray or Series or None
        Class or number of each row, (N,).
    splits : sequence of (ndarray, ndarray)
        Row numbers, from 0, to train on and to test on.
    classes : sequence of str
        The classes in their order, where the source gives one.

    Raises
    ------
    SettingError
        There is no column or no row, or a split is none.
    """
    if not columns or not len(next(iter(columns.values()))):
        rows = len(next(iter(columns.values()), () if target is None else target))
        raise SettingError(name, f"{rows} rows, {len(columns)} features", "at least one of each")
    held = {key: column(cells) for key, cells in columns.items()}
    aim = None if target is None else column(target, named=True)
    whole = Frame(name, held, aim, classes=tuple(classes))
    drawn = (checked_split(name, i, whole.count, *rows) for i, rows in enumerate(splits))
    return replace(whole, splits=tuple(drawn))


def frame_of(
    name: str, held: DataFrame, target: str, splits: Splits = (), classes: Sequence[str] = ()
) -> Frame:
    """Return the columns and targets in a DataFrame.

    Parameters
    ----------
    name : str
        Its source, for errors.
    held : DataFrame
        Its rows; the index is no column.
    target : str
        The column that is predicted; it need not be there.
    splits : sequence of (ndarray, ndarray)
        Row numbers, from 0, to train on and to test on.
    classes : sequence of str
        The classes in their order, where the source gives one; else a categorical target does.

    Raises
    ------
    SettingError
        Two columns have one name, or none.
    """
    names = [plain(column) for column in held.columns]
    if "" in names:
        allowed = "a name in the header; leave a column of row numbers out"
        raise CellError(f"{name}: column {names.index('') + 1}", "", allowed)
    if broken := [held for held in names if SURROGATE.search(held)]:
        where = f"{name}: column {names.index(broken[0]) + 1}"
        raise CellError(where, shown(broken[0]), "a name without half a character")
    if len(set(names)) < len(names):
        twice = Counter(names).most_common(1)[0][0]
        raise CellError(f"{name}: column {twice!r}", "twice", "another name for each column")
    columns = {column: held.iloc[:, i] for i, column in enumerate(names)}
    aim = columns.pop(plain(target), None)
    if aim is not None and not classes and hasattr(aim, "cat"):
        used = set(aim.dropna().tolist())
        classes = [name_of(category) for category in aim.cat.categories if category in used]
    return frame(name, columns, aim, splits, classes)
