"""A function of one's own, ``package.module:function``, that returns a pandas DataFrame."""

from __future__ import annotations

from fedbary.data.frame import Frame
from fedbary.data.tables._dataframe import frame_of
from fedbary.errors import SettingError
from fedbary.parts.imports import called_function


def read(name: str, target: str) -> Frame:
    """Return columns and targets that a function returns; a SettingError as of `frame_of`."""
    import pandas

    found = called_function("dataset", name)
    if not isinstance(found, pandas.DataFrame):
        allowed = f"a function that returns a pandas DataFrame, not a {type(found).__name__}"
        raise SettingError("dataset", name, allowed)
    return frame_of(name, found, target)
