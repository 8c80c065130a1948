"""The partitioners of flwr-datasets and their parameters, imported on demand."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import MappingProxyType, NoneType
from typing import Any, get_type_hints

from fedbary.data.partition import SCHEMES, Skew
from fedbary.parts.parameters import Parameter, arms, bare, declared, meanings

GIVEN = {
    "num_partitions": "clients",
    "partition_by": "target",
    "seed": "seed",
    "min_partition_size": "min_examples",
    "shuffle": "",
}
"""Parameters that come from other settings or the data, each with its source.

A client's examples are kept in their order, so that it does not matter whether they are shuffled.
"""

VERTICAL = "Vertical"
"""Prefix of the names of those that deal columns, not examples."""


@cache
def partitioners() -> Mapping[str, Mapping[str, Parameter]]:
    """Return the parameters of each partitioner that settings can describe, by its name.

    A partitioner is left out if it takes no number of clients, or needs a list or a function.
    Without flwr-datasets there are none.
    """
    found = {name: _parameters(kind) for name, kind in classes().items()}
    return MappingProxyType({name: own for name, own in found.items() if own is not None})


def parameters_of(partition: str) -> Mapping[str, Parameter]:
    """Return the parameters of a partition; none for an unknown one."""
    own = SCHEMES.get(partition)
    return declared(own) if own else partitioners().get(partition, {})


def classes() -> Mapping[str, type]:
    """Return the class of each partitioner by its name, where flwr-datasets is installed."""
    if not find_spec("flwr_datasets"):
        return {}
    found = vars(import_module("flwr_datasets.partitioner"))
    return {name: found[name] for name in sorted(found) if isinstance(found[name], type)}


def _parameters(partitioner: Any) -> Mapping[str, Parameter] | None:
    arguments = inspect.signature(partitioner).parameters
    if "num_partitions" not in arguments or partitioner.__name__.startswith(VERTICAL):
        return None
    kinds = get_type_hints(partitioner.__init__)
    said = meanings(inspect.cleandoc(partitioner.__doc__ or ""))
    found = {}
    for name, argument in arguments.items():
        if name in GIVEN:
            continue
        if name == "alpha":  # a number for all classes, as of the package's own
            found[name] = declared(Skew)[name]
            continue
        kind, default = kinds[name], argument.default
        if all(bare(arm) is None for arm in arms(kind)):
            if default is argument.empty:
                return None
            continue
        if default is argument.empty or default is None:
            kind, default = kind | NoneType, None
        found[name] = Parameter(name, kind, default, said.get(name, ""))
    return MappingProxyType(found)
