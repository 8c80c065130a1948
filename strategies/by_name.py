"""One strategy class per method and per aggregation rule, made on demand."""

from __future__ import annotations

import copyreg
from functools import cache
from typing import Any

from fedbary.aggregation import RULES, rule_named
from fedbary.errors import SettingError
from fedbary.methods import METHODS, hierarchy, method_named
from fedbary.methods.barycentre import Barycentre
from fedbary.parts.imports import own_function
from fedbary.parts.registry import is_factory

from .method_strategy import MethodStrategy
from .strategy import PosteriorStrategy


@cache
def strategy_for(name: str) -> type[MethodStrategy]:
    """Return the strategy class of a method or a rule, the same one at every call.

    The class of the method barycentre takes the rule as an argument. ``package.module:NAME`` names
    a rule or a method of one's own.

    Raises
    ------
    SettingError
        If there is no method or rule of that name; the message lists the names.
    """
    if name == Barycentre.name:
        return PosteriorStrategy
    kind: type[MethodStrategy]
    members: dict[str, Any]
    if name in METHODS or (is_factory(name) and _is_method(name)):
        method = method_named(name)
        kind = PosteriorStrategy if method is hierarchy.Hierarchy else MethodStrategy
        called, members = method.name, {"method_class": method, "__doc__": method.__doc__}
    elif name in RULES or is_factory(name):
        rule = rule_named(name)
        doc = f"Flower strategy that aggregates posteriors under the rule {rule.name}."
        kind, called = PosteriorStrategy, rule.name
        members = {"rule": rule, "named": (name, rule), "__doc__": doc}
    else:
        allowed = ", ".join([*RULES, *METHODS, "or package.module:NAME, one of your own"])
        raise SettingError("rule or method", name, allowed)
    made = type(called, (kind,), {**members, "__module__": __name__})
    if is_factory(name):  # pickle finds the others by their names in this module
        copyreg.pickle(made, lambda held: (_blank, (name,), held.__getstate__()))
    return made


def _blank(name: str) -> MethodStrategy:
    """Return a strategy that has no state yet, for pickle."""
    kind = strategy_for(name)
    return kind.__new__(kind)


def _is_method(name: str) -> bool:
    """Return whether a name of one's own is that of a class, not of a rule."""
    return isinstance(own_function("rule or method", name, "NAME"), type)


def __getattr__(name: str) -> type[MethodStrategy]:
    """Return a strategy class by its name, by which pickle finds it."""
    if name in METHODS or name in RULES:
        return strategy_for(name)
    raise AttributeError(name)
