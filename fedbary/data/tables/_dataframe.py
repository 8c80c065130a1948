"""A pandas DataFrame; one of its columns is the target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from numbers import Number
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbary.data.tables._frame import Frame, frame
from fedbary.data.tables._words import name_of, plain
from fedbary.errors import CellError

if TYPE_CHECKING:
    from pandas import DataFrame, Series

Splits = Sequence[tuple[np.ndarray, np.ndarray]]


def frame_of(
    name: str, held: DataFrame, target: str, splits: Splits = (), classes: Sequence[str] = ()
) -> Frame:
    """Return the columns and targets in a DataFrame.

    Parameters
    ----------
    name : str
        Where it is from, named in errors.
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
        Two columns have one name, or none, or one holds neither numbers nor text.
    """
    names = [plain(column) for column in held.columns]
    if "" in names:
        allowed = "a name in the header; leave a column of row numbers out"
        raise CellError(f"{name}: column {names.index('') + 1}", "", allowed)
    if len(set(names)) < len(names):
        twice = Counter(names).most_common(1)[0][0]
        raise CellError(f"{name}: column {twice!r}", "twice", "another name for each column")
    columns = {column: _checked(name, column, held.iloc[:, i]) for i, column in enumerate(names)}
    aim = columns.pop(plain(target), None)
    if aim is not None and not classes and hasattr(aim, "cat"):
        used = set(aim.dropna().tolist())
        classes = [name_of(category) for category in aim.cat.categories if category in used]
    return frame(name, columns, aim, splits, classes)


def _checked(name: str, column: str, held: Series[Any]) -> Series[Any]:
    """Return a column of numbers, booleans or text; the error of another kind."""
    from pandas.api import types

    if isinstance(held.dtype, types.CategoricalDtype):
        _checked(name, column, held.cat.categories.to_series())
        return held
    plain = types.is_numeric_dtype(held.dtype) and not types.is_complex_dtype(held.dtype)
    if plain or types.is_bool_dtype(held.dtype) or types.is_string_dtype(held.dtype):
        if held.dtype != object:
            return held
    for cell in held[held.notna()].tolist():
        if not isinstance(cell, str | Number):
            raise CellError(f"{name}: column {column!r}", str(held.dtype), "numbers or text")
    if held.dtype != object:
        raise CellError(f"{name}: column {column!r}", str(held.dtype), "numbers or text")
    return held
