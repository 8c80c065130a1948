"""A function of one's own, ``package.module:function``, that returns a pandas DataFrame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbary.data.tables._dataframe import frame_of, table_of
from fedbary.data.tables._frame import Frame
from fedbary.data.tables._table import Table
from fedbary.errors import SettingError
from fedbary.imports import called_function

if TYPE_CHECKING:
    from pandas import DataFrame


def read(name: str, target: str) -> Table:
    """Return the regression set that a function returns; a SettingError as of `table_of`."""
    return table_of(name, _called(name), target)


def read_labelled(name: str, target: str) -> Frame:
    """Return the columns and classes that a function returns; a SettingError as of `frame_of`."""
    return frame_of(name, _called(name), target)


def _called(name: str) -> DataFrame:
    import pandas

    found = called_function("dataset", name)
    if not isinstance(found, pandas.DataFrame):
        allowed = f"a function that returns a pandas DataFrame, not a {type(found).__name__}"
        raise SettingError("dataset", name, allowed)
    return found
