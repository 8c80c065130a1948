"""The partitioners of flwr-datasets and their parameters, read from its files; none is imported."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

from fedbary.settings.parameters import KINDS, Parameter, Value, kind_of, meanings
from fedbary.settings.sources import Source, classes

GIVEN = {
    "num_partitions": "clients",
    "partition_by": "target",
    "seed": "seed",
    "alpha": "alpha",
    "min_partition_size": "min_examples",
    "shuffle": "",
}
"""Parameters that other settings, or the data, give, each with what does.

A client's examples are kept in their order, so that it does not matter whether they are shuffled.
"""

VERTICAL = "Vertical"
"""How the names of those begin that deal columns, not examples."""


@cache
def partitioners() -> Mapping[str, Mapping[str, Parameter]]:
    """Return the parameters of each partitioner that settings can describe, by its name.

    One is left out that takes no number of clients, or cannot do without a list or a function.
    Without flwr-datasets there are none.
    """
    found = {source.name: _parameters(source) for source in sources()}
    return MappingProxyType({name: own for name, own in found.items() if own is not None})


def uses_alpha(partition: str) -> bool:
    """Whether a partition takes the setting `alpha`."""
    of_theirs = (_arguments(source) for source in sources() if source.name == partition)
    return partition in ("dirichlet", "quantity") or any("alpha" in names for names in of_theirs)


def sources() -> Iterator[Source]:
    """Yield the class of each partitioner, where flwr-datasets is installed."""
    package = find_spec("flwr_datasets")
    for place in package.submodule_search_locations or () if package else ():
        for file in sorted((Path(place) / "partitioner").glob("*_partitioner.py")):
            yield from classes(file)


def _arguments(source: Source) -> dict[str, tuple[str, ast.expr | None]]:
    """Return the annotation of each argument of a class, and its default."""
    for node in source.definition.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            found = node.args.args[1:]
            defaults = [None] * (len(found) - len(node.args.defaults)) + [*node.args.defaults]
            return {
                argument.arg: (ast.unparse(argument.annotation), default)
                for argument, default in zip(found, defaults, strict=True)
                if argument.annotation is not None
            }
    return {}


def _parameters(source: Source) -> Mapping[str, Parameter] | None:
    arguments = _arguments(source)
    if "num_partitions" not in arguments or source.name.startswith(VERTICAL):
        return None
    said = meanings(inspect.cleandoc(ast.get_docstring(source.definition) or ""))
    found = {}
    for name, (annotation, default) in arguments.items():
        kind, optional = kind_of(annotation)
        if name in GIVEN:
            continue
        if kind not in KINDS and not kind.startswith("Literal["):
            if default is None:
                return None
            continue
        value: Value = None if default is None else ast.literal_eval(default)
        meaning = said.get(name, "")
        found[name] = Parameter(name, kind, value, meaning, optional or default is None)
    return MappingProxyType(found)
