"""A pandas DataFrame; one of its columns is the target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedbary.data.frame import Frame, frame
from fedbary.data.tables._words import name_of, plain
from fedbary.errors import CellError

if TYPE_CHECKING:
    from pandas import DataFrame

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
        Two columns have one name, or none.
    """
    names = [plain(column) for column in held.columns]
    if "" in names:
        allowed = "a name in the header; leave a column of row numbers out"
        raise CellError(f"{name}: column {names.index('') + 1}", "", allowed)
    if len(set(names)) < len(names):
        twice = Counter(names).most_common(1)[0][0]
        raise CellError(f"{name}: column {twice!r}", "twice", "another name for each column")
    columns = {column: held.iloc[:, i] for i, column in enumerate(names)}
    aim = columns.pop(plain(target), None)
    if aim is not None and not classes and hasattr(aim, "cat"):
        used = set(aim.dropna().tolist())
        classes = [name_of(category) for category in aim.cat.categories if category in used]
    return frame(name, columns, aim, splits, classes)
