"""Imports that only some runs need: a user's own function, or a library of an extra."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

from fedbary.errors import SettingError, one_line


def own_function(setting: str, name: str, called: str) -> Callable[..., Any]:
    """Return the function that ``package.module:function`` names.

    Parameters
    ----------
    setting : str
        The setting that holds the name.
    name : str
        The name, of that form.
    called : str
        Name of the function in errors, as in ``package.module:factory``.

    Raises
    ------
    SettingError
        If it cannot be imported.
    """
    module, _, function = name.partition(":")
    try:
        found: Callable[..., Any] = getattr(import_module(module), function)
    except Exception as error:  # noqa: BLE001 - code of others raises many kinds
        allowed = f"package.module:{called} that can be imported ({said(error)})"
        raise SettingError(setting, name, allowed) from None
    return found


def call_own_function(setting: str, name: str) -> Any:
    """Return the result of the function ``package.module:function``, called without arguments.

    Raises
    ------
    SettingError
        If it cannot be imported, or raises an error.
    """
    function = own_function(setting, name, "function")
    try:
        return function()
    except Exception as error:  # noqa: BLE001 - code of others raises many kinds
        allowed = f"a function that can be called without arguments ({said(error)})"
        raise SettingError(setting, name, allowed) from None


def library(module: str, extra: str, setting: str, value: object) -> ModuleType:
    """Import a library that an extra of this package brings.

    Raises
    ------
    SettingError
        If it is not installed; the message names the extra that the setting's value needs.
    """
    try:
        return import_module(module)
    except ImportError as error:
        allowed = f"another, or pip install 'fedbary[{extra}]' ({one_line(error)})"
        raise SettingError(setting, value, allowed) from None


def said(error: Exception) -> str:
    """Return an error of foreign code, with its kind, in one line."""
    return f"{type(error).__name__}: {one_line(error)}"
