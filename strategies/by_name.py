"""One strategy class per method and per aggregation rule, made on demand."""

from __future__ import annotations

from functools import cache
from typing import Any

from fedbary.aggregation import RULES
from fedbary.errors import SettingError
from fedbary.methods import METHODS, hierarchy
from fedbary.methods.barycentre import Barycentre

from .method_strategy import MethodStrategy
from .strategy import PosteriorStrategy


@cache
def strategy_for(name: str) -> type[MethodStrategy]:
    """Return the strategy class of a method or a rule, the same one at every call.

    The class of the method barycentre takes the rule as an argument.

    Raises
    ------
    SettingError
        If there is no method or rule of that name; the message lists the names.
    """
    if name == Barycentre.name:
        return PosteriorStrategy
    kind: type[MethodStrategy]
    members: dict[str, Any]
    if name in METHODS:
        kind = PosteriorStrategy if METHODS[name] is hierarchy.Hierarchy else MethodStrategy
        members = {"method_class": METHODS[name], "__doc__": METHODS[name].__doc__}
    elif name in RULES:
        doc = f"Flower strategy that aggregates posteriors under the rule {name}."
        kind, members = PosteriorStrategy, {"rule": RULES[name], "__doc__": doc}
    else:
        raise SettingError("rule or method", name, ", ".join([*RULES, *METHODS]))
    return type(name, (kind,), {**members, "__module__": __name__})


def __getattr__(name: str) -> type[MethodStrategy]:
    """Return a strategy class by its name, by which pickle finds it."""
    if name in METHODS or name in RULES:
        return strategy_for(name)
    raise AttributeError(name)
