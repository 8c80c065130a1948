"""A CSV file with a header; one of its columns is the target. No splits are prescribed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedbary.data.tables._dataframe import frame_of, table_of
from fedbary.data.tables._frame import Frame
from fedbary.data.tables._table import Table
from fedbary.data.tables._text import read_text
from fedbary.errors import SettingError

if TYPE_CHECKING:
    from pandas import DataFrame


def read(path: Path, target: str) -> Table:
    """Return the regression set in a CSV file.

    Raises
    ------
    SettingError
        There is no column of the target's name, a column has no name, or a cell is not a finite
        number.
    """
    return table_of(str(path), cells(path), target)


def read_labelled(path: Path, target: str) -> Frame:
    """Return the columns and classes in a CSV file.

    Raises
    ------
    SettingError
        There is no column of the target's name, a column has no name, or a cell is not what it
        must be, see `fedbary.data.tables._frame.frame`.
    """
    return frame_of(str(path), cells(path), target)


def cells(path: Path) -> DataFrame:
    """Return the cells of a CSV file with a header, as text."""
    held = read_text(path, skipinitialspace=True)
    if len(held.columns) == 1 and ";" in str(held.columns[0]):
        allowed = "commas between, no semicolons"
        raise SettingError(f"{path}: header", str(held.columns[0]), allowed)
    names = read_text(path, header=None, nrows=1, skipinitialspace=True).iloc[0].tolist()
    if twice := [name for name in names if name and names.count(name) > 1]:
        raise SettingError(f"{path}: column {twice[0]!r}", "twice", "another name for each column")
    if unnamed := [i for i, name in enumerate(held.columns, 1) if name == f"Unnamed: {i - 1}"]:
        allowed = "a name in the header; leave a column of row numbers out"
        raise SettingError(f"{path}: column {unnamed[0]}", "", allowed)
    return held
