"""A user's own function, ``package.module:factory``, that returns a pretrained network."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from fedbary.backbones._body import Transform, fill
from fedbary.data.forms import DataSource
from fedbary.errors import SettingError
from fedbary.parts.imports import call_own_function, said


def make(source: DataSource, weights: str) -> tuple[nn.Module, Transform]:
    """Return the function's result: a module, or one with a dict of its transform.

    The dict has some of ``size``, ``mean``, ``std`` and ``mode``, see `Transform`.

    Raises
    ------
    SettingError
        If it cannot be imported or called without arguments, or returns something else.
    """
    name = source.text
    found = call_own_function("backbone", name)
    body, told = found if isinstance(found, tuple) and len(found) == 2 else (found, {})
    allowed = "a function that returns an nn.Module, or one and a dict of size, mean, std, mode"
    if not isinstance(body, nn.Module) or not isinstance(told, Mapping):
        raise SettingError("backbone", name, f"{allowed}; not a {type(found).__name__}")
    try:
        transform = Transform(**told)
    except TypeError as error:
        raise SettingError("backbone", name, f"{allowed} ({said(error)})") from None
    if weights != "auto":
        fill(body, weights)
    return body, transform
