"""A function of one's own, ``package.module:function``, that returns the four arrays by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedbary.errors import SettingError
from fedbary.parts.imports import called_function


def read(name: str) -> Mapping[str, Any]:
    """Return what the function returns: a dict; `from_arrays` says of what.

    Raises
    ------
    SettingError
        It cannot be imported or called without arguments, or returns something else.
    """
    found = called_function("dataset", name)
    if not isinstance(found, Mapping):
        allowed = "a function that returns a dict of x_train, y_train, x_test, y_test, "
        raise SettingError("dataset", name, f"{allowed}not a {type(found).__name__}")
    return found
