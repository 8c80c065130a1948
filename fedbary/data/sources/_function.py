"""A user's own function, ``package.module:function``, called without arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedbary.data.forms import DataSource
from fedbary.data.frame import Frame, frame_of
from fedbary.data.readers import Reading
from fedbary.errors import SettingError
from fedbary.parts.imports import call_own_function


def images(source: DataSource, reading: Reading) -> Mapping[str, Any]:
    """Return what the function returns: a dict of the four arrays.

    Raises
    ------
    SettingError
        It cannot be imported or called without arguments, or does not return such arrays.
    """
    found = call_own_function("dataset", source.text)
    if not isinstance(found, Mapping):
        allowed = "a function that returns a dict of x_train, y_train, x_test, y_test, "
        raise SettingError("dataset", source.text, f"{allowed}not a {type(found).__name__}")
    return found


def table(source: DataSource, reading: Reading) -> Frame:
    """Return columns and targets of a pandas DataFrame; a SettingError as in `images`."""
    import pandas

    found = call_own_function("dataset", source.text)
    if not isinstance(found, pandas.DataFrame):
        allowed = f"a function that returns a pandas DataFrame, not a {type(found).__name__}"
        raise SettingError("dataset", source.text, allowed)
    return frame_of(source.text, found, reading.target)
