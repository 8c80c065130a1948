"""A pandas DataFrame; one of its columns is the target."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Number
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbary.data.tables._frame import Frame, frame
from fedbary.data.tables._table import Table
from fedbary.data.tables._text import numbers
from fedbary.errors import SettingError

if TYPE_CHECKING:
    from pandas import DataFrame

Splits = Sequence[tuple[np.ndarray, np.ndarray]]


def table_of(name: str, held: DataFrame, target: str, splits: Splits = ()) -> Table:
    """Return the regression set in a DataFrame.

    Parameters
    ----------
    name : str
        Where it is from, named in errors.
    held : DataFrame
        Its rows; the index is no column.
    target : str
        The column that is to be predicted.
    splits : sequence of (ndarray, ndarray)
        Row numbers, from 0, to train on and to test on.

    Raises
    ------
    SettingError
        There is no column of the target's name, or a cell is not a finite number.
    """
    import pandas

    found = pandas.DataFrame(columns_of(name, _with(name, held, target)))
    return numbers(name, found.drop(columns=target), found[target], list(splits))


def frame_of(name: str, held: DataFrame, target: str, splits: Splits = ()) -> Frame:
    """Return the columns and classes in a DataFrame, which is as `table_of` has it.

    Raises
    ------
    SettingError
        There is no column of the target's name, or a cell is not what it must be, see
        `fedbary.data.tables._frame.frame`.
    """
    columns = columns_of(name, _with(name, held, target))
    classes = columns.pop(target)
    return frame(name, columns, classes, splits)


def columns_of(name: str, held: DataFrame) -> dict[str, np.ndarray]:
    """Return columns by name, (N,): float64 or objects that are text; missing is NaN or "".

    Raises
    ------
    SettingError
        Two columns have one name, or one holds neither numbers nor text.
    """
    names = [str(column) for column in held.columns]
    if twice := sorted({column for column in names if names.count(column) > 1}):
        raise SettingError(f"{name}: columns", twice[0], "a name for each column of its own")
    return {column: _values(name, column, held.iloc[:, i]) for i, column in enumerate(names)}


def _with(name: str, held: DataFrame, target: str) -> DataFrame:
    if target not in map(str, held.columns):
        columns = ", ".join(map(str, held.columns))
        raise SettingError("target", target, f"a column of {name}: {columns}")
    return held


def _values(name: str, column: str, held: Any) -> np.ndarray:
    from pandas.api import types

    if types.is_numeric_dtype(held.dtype) and not types.is_complex_dtype(held.dtype):
        return np.asarray(held.to_numpy(np.float64, na_value=np.nan))
    cells = held.to_numpy(object)
    absent = held.isna().to_numpy()
    for cell in cells[~absent].tolist():
        if not isinstance(cell, str | Number):
            raise SettingError(f"{name}: column {column!r}", str(held.dtype), "numbers or text")
    return np.array(
        ["" if none else str(cell) for cell, none in zip(cells, absent, strict=True)], dtype=object
    )
