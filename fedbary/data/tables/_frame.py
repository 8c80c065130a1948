"""A table as its source has it: named columns of numbers or of text, and a class for each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedbary.data.tables._split import Split, checked_split
from fedbary.errors import CellError, SettingError

MISSING = frozenset({"", "na", "n/a", "#n/a", "<na>", "nan", "null", "?"})
"""Cells of text that stand for a missing value, in whatever case."""

_TODO = "a value: none is filled in; fill the cell, or leave the row or the column out"

TARGET = "target"
"""What errors call the column of the classes."""


@dataclass(frozen=True, eq=False)
class Frame:
    """Columns and classes of N rows without a missing value, before anything is coded.

    Attributes
    ----------
    name : str
        Where it is from.
    columns : Mapping[str, ndarray]
        By name (N,) numbers, or objects that are text without space around it.
    target : ndarray
        Class of each row, (N,), text: a whole number is written without a fraction.
    splits : tuple of Split
        The splits that the source prescribes; empty if it prescribes none.
    """

    name: str
    columns: Mapping[str, np.ndarray]
    target: np.ndarray
    splits: tuple[Split, ...] = ()


def frame(
    name: str,
    columns: Mapping[str, np.ndarray],
    target: np.ndarray,
    splits: Sequence[tuple[np.ndarray, np.ndarray]] = (),
) -> Frame:
    """Return the frame that columns and classes describe.

    A column of text in which every cell is a number becomes a column of numbers.

    Parameters
    ----------
    name : str
        Where they are from, named in errors.
    columns : Mapping[str, ndarray]
        At least one, (N,), numbers or text.
    target : ndarray
        Class of each row, (N,), whole numbers or text.
    splits : sequence of (ndarray, ndarray)
        Row numbers, from 0, to train on and to test on.

    Raises
    ------
    SettingError
        A cell is missing or not finite, or some cells of a column are numbers and some are text
        (names row, counted from 1, and column); there is no column or no row; or a split is none.
    """
    if not columns or not len(target):
        raise SettingError(name, f"{len(target)} rows, {len(columns)} features", "at least 1 and 1")
    found = {column: _cells(name, f"feature {column!r}", v) for column, v in columns.items()}
    classes = _classes(_cells(name, TARGET, target, mixed=True))
    drawn = (checked_split(name, i, len(classes), *rows) for i, rows in enumerate(splits))
    return Frame(name, found, classes, tuple(drawn))


def _cells(name: str, column: str, values: np.ndarray, mixed: bool = False) -> np.ndarray:
    """Return a column's numbers, or its text; `mixed` says that it may hold both."""
    if values.dtype.kind in "iufb":
        numbers = values.astype(np.float64)
        _refuse(name, column, ~np.isfinite(numbers), values, _TODO)
        return numbers
    cells = np.array([str(cell).strip() for cell in values], dtype=object)
    missing = np.array([cell.casefold() in MISSING for cell in cells])
    _refuse(name, column, missing, cells, _TODO)
    import pandas

    numbers = pandas.to_numeric(pandas.Series(cells), errors="coerce").to_numpy(np.float64)
    text = np.isnan(numbers)
    if text.all() or (mixed and text.any()):
        return cells
    todo = "a finite number, as other rows of this column hold; or text that is no number in all"
    _refuse(name, column, ~np.isfinite(numbers), cells, todo)
    return numbers


def _refuse(name: str, column: str, bad: np.ndarray, cells: np.ndarray, allowed: str) -> None:
    for row in np.flatnonzero(bad)[:1].tolist():
        raise CellError(
            f"{name}: row {row + 1}, {column}", cells[row : row + 1].tolist()[0], allowed
        )


def _classes(cells: np.ndarray) -> np.ndarray:
    """Return classes as text; 1, "1" and "1.0" are one class."""
    names = {cell: class_name(cell) for cell in set(cells.tolist())}
    return np.array([names[cell] for cell in cells.tolist()], dtype=object)


def class_name(cell: object) -> str:
    """Return a class's name: a whole number without a fraction, other text as it stands."""
    try:
        number = float(str(cell))
    except ValueError:
        return str(cell)
    return str(int(number)) if number.is_integer() else str(cell)
