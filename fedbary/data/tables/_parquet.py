"""A Parquet file; one of its columns is the target. No splits are prescribed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedbary.data.tables._dataframe import frame_of, table_of
from fedbary.data.tables._frame import Frame
from fedbary.data.tables._table import Table
from fedbary.errors import SettingError
from fedbary.imports import library

if TYPE_CHECKING:
    from pandas import DataFrame


def read(path: Path, target: str) -> Table:
    """Return the regression set in a Parquet file; a SettingError as of `table_of`."""
    return table_of(str(path), cells(path), target)


def read_labelled(path: Path, target: str) -> Frame:
    """Return the columns and classes in a Parquet file; a SettingError as of `frame_of`."""
    return frame_of(str(path), cells(path), target)


def cells(path: Path) -> DataFrame:
    """Return the rows of a Parquet file.

    Raises
    ------
    SettingError
        It cannot be read, or pyarrow, which reads it, is not installed.
    """
    import pandas

    pyarrow = library("pyarrow", "parquet", "file", str(path))
    try:
        return pandas.read_parquet(path, engine="pyarrow")
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise SettingError(str(path), error, "a Parquet file") from error
