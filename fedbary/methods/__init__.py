"""Published federated methods, a file each.

A method is a module of this package. It defines one public subclass of `Method` or of another
method: a frozen dataclass of its parameters with the paper's defaults. Nothing else registers it.
Its name is the class's, in small letters the file's. Types say what parameters may be. Shared code
lies in modules whose names start with an underscore.

A method of one's own needs no file here: ``package.module:Class`` names its class.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

from fedbary.aggregation import rule_named, rule_parameters
from fedbary.errors import SettingError
from fedbary.methods._method import (
    Arrival,
    Bench,
    Fitted,
    Local,
    Method,
    Reply,
    Server,
    Tensors,
    require_room,
)
from fedbary.parts.imports import own_function
from fedbary.parts.parameters import Value, declared
from fedbary.parts.registry import is_factory, modules
from fedbary.predictive.predictor import kind_of
from fedbary.settings.config import Settings
from fedbary.settings.task_words import OfClasses

__all__ = [
    "METHODS",
    "Arrival",
    "Bench",
    "Fitted",
    "Local",
    "Method",
    "Reply",
    "Server",
    "Tensors",
    "arguments_of",
    "full_name",
    "method_named",
    "method_of",
    "require_method",
    "require_room",
]


def _defined(module: str) -> type[Method]:
    """Return the method that a module of this package defines."""
    held = vars(import_module(f"{__name__}.{module}")).values()
    kinds = [k for k in held if isinstance(k, type) and k.__module__ == f"{__name__}.{module}"]
    found = [k for k in kinds if issubclass(k, Method) and not k.__name__.startswith("_")]
    if [k.name.lower() for k in found] != [module]:
        names = ", ".join(k.name for k in found) or "none"
        allowed = "one public class that inherits from Method, named as the file"
        raise SettingError(f"{module}.py: methods", names, allowed)
    declared(found[0])  # says at once what is wrong with it
    return found[0]


METHODS: Mapping[str, type[Method]] = MappingProxyType(
    {found.name: found for found in map(_defined, modules("methods"))}
)
"""Every method's class by its name."""


def method_of(settings: Settings) -> Method:
    """Return the run's method with its parameters.

    Raises
    ------
    SettingError
        If a parameter is out of its range.
    """
    found: dict[str, Any] = arguments_of(settings)
    if "rule" in found and rule_parameters(found["rule"]):
        found["rule"] = rule_named(found["rule"], dict(settings))
    return method_named(settings.method)(**found)


def arguments_of(settings: Settings) -> dict[str, Value]:
    """Return the parameters of the run's method by name."""
    words, own = dict(settings), declared(method_named(settings.method))
    return {name: own[name].read(words[name]) for name in own}


def require_method(settings: Settings) -> None:
    """Raise a SettingError if the run's method does not allow its parameters or its rounds.

    Further refusals: a server without examples where the method learns from some;
    `predictive=members` of a method without members; clients that would fit a temperature to other
    predictions than the server's.
    """
    method = method_of(settings)
    method.check(settings.participants, settings.local.local_epochs)
    if method.needs_bench and settings.server_fraction == 0:
        allowed = f"above 0, as {settings.method} learns from examples that the server keeps"
        raise SettingError("server_fraction", settings.server_fraction, allowed)
    if kind_of(settings.predictive).needs_members and method.members is None:
        have = (name for name, kind in METHODS.items() if kind.members)
        allowed = f"another value for {settings.method}; methods whose networks predict together: "
        allowed += ", ".join(have)
        raise SettingError("predictive", settings.predictive, allowed)
    calibrate = settings.of_task(OfClasses).calibrate
    if calibrate != "none" and not _is_scored_whole(method):
        why = "its clients have only a part of the networks that predict"
        raise SettingError("calibrate", calibrate, f"none for {settings.method}: {why}")


def _is_scored_whole(method: Method) -> bool:
    """Return whether clients who score the global model have all that it predicts by."""
    predicts_by_it = not (method.members or method.draws_around)
    return predicts_by_it or method.shows or method.personalises


def method_named(name: str) -> type[Method]:
    """Return the method of that name, or that ``package.module:Class`` names.

    Raises
    ------
    SettingError
        If there is none; the message lists the names. If a class of one's own is no method.
    """
    if name in METHODS:
        return METHODS[name]
    if not is_factory(name):
        raise SettingError("method", name, f"{', '.join(METHODS)}, or package.module:Class")
    own: Any = own_function("method", name, "Class")
    if not isinstance(own, type) or not issubclass(own, Method) or own is Method:
        raise SettingError("method", name, "a class below fedbary.methods.Method")
    if own.name in METHODS and METHODS[own.name] is not own:
        raise SettingError("method", name, f"a class with a name of its own, not {own.name}")
    if (place := full_name(own)) != name:
        raise SettingError("method", name, f"the name where the class lies, {place}")
    declared(own)  # says at once what is wrong with it
    return own


def full_name(kind: type[Method]) -> str:
    """Return the name by which `method_named` finds a method."""
    known = METHODS.get(kind.name) is kind
    return kind.name if known else f"{kind.__module__}:{kind.__qualname__}"
