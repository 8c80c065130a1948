"""The parameters that methods and networks declare, and the settings that a method leaves unused.

What is asked here is imported, and PyTorch with it; names alone are in `fedbary.parts.registry`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING

from fedbary.parts.parameters import Parameter, declared
from fedbary.parts.registry import modules

if TYPE_CHECKING:
    from fedbary.methods import Method

_OF_POSTERIORS = ("inference", "prior", "prior_std", "kl_weight", "log_var_lr", "init_log_var")
"""Settings without use where weights are points."""

_OF_RULES = (
    "rule",
    "trim_fraction",
    "clipping",
    "mixing",
    "max_precision_ratio",
    "server_momentum",
)
"""Settings without use under methods that do not have them as parameters."""


def methods() -> Mapping[str, type[Method]]:
    """Return every method's class by its name."""
    found: Mapping[str, type[Method]] = import_module("fedbary.methods").METHODS
    return found


def divergences() -> tuple[str, ...]:
    """Return the rules that make a divergence least."""
    return tuple(import_module("fedbary.aggregation").DIVERGENCES)


@cache
def models() -> Mapping[str, Mapping[str, Parameter]]:
    """Return the parameters of every network, by the network's name."""
    names = modules("models")
    found = {n: declared(import_module(f"fedbary.models.{n}").Parameters) for n in names}
    return MappingProxyType(found)


def unused_by(method: type[Method]) -> frozenset[str]:
    """Return the settings that other methods use and this one does not."""
    of_posteriors = _OF_POSTERIORS if method.deterministic else ()
    return frozenset({*method.unused, *_OF_RULES, *of_posteriors} - declared(method).keys())
