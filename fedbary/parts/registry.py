"""The names that settings may hold, read from the parts' files without importing them."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path

from fedbary.parts.imports import own_function

_PACKAGE = Path(__file__).parents[1]

_OF_PARTS = (
    "aggregation", "attacks", "data", "inference", "methods", "models", "predictive",
    "runs/tracking", "settings", "tasks",
)  # fmt: skip
"""The rooms with classes of parameters."""

_CLASS = re.compile(r"(?m)^class (\w+)\((.*)\):\n((?:[ \t].*\n|\n)*)")
"""A class's name, its bases and its body."""

_FIELD = re.compile(r"(?m)^    (\w+): (?!ClassVar).+ = ")


def modules(package: str, function: str = "") -> tuple[str, ...]:
    """Return the names of the public modules of a package of fedbary, in order.

    With a function's name only the modules that define it are returned. A file that is added later
    is found by another process.
    """
    begins = f"\ndef {function}("
    return tuple(
        name for name, text in _texts(_PACKAGE / package).items() if not function or begins in text
    )


@cache
def _texts(folder: Path) -> Mapping[str, str]:
    """Return the text of each public module in a folder, by its name, in order."""
    names = sorted(m.name for m in pkgutil.iter_modules([str(folder)]) if not m.ispkg)
    public = (name for name in names if not name.startswith("_"))
    return {name: (folder / f"{name}.py").read_text(encoding="utf-8") for name in public}


def accepted_forms(package: str, functions: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the ``FORM`` of each module of a package that defines one of some functions."""
    wanted = functions or ("",)
    texts = [
        text
        for name, text in _texts(_PACKAGE / package).items()
        if any(name in modules(package, function) for function in wanted)
    ]
    return tuple(re.findall(r'^FORM = "(.+)"', text, re.M)[0] for text in texts)


def predictors() -> Mapping[str, str]:
    """Return the file of each kind of prediction, by the word that names it."""
    return {
        word: file
        for file, text in _texts(_PACKAGE / "predictive").items()
        for word in re.findall(r'^    word = "(\w+)"', text, re.M)
    }


@cache
def parameter_names() -> tuple[str, ...]:
    """Return the names of all parts' parameters, in order: fields of classes below `Checked`."""
    texts = (f.read_text("utf-8") for room in _OF_PARTS for f in (_PACKAGE / room).glob("*.py"))
    found = [own for text in texts for own in _CLASS.findall(text)]
    parts = {"Checked"}
    while more := {name for name, above, _ in found if parts & {*above.split(", ")}} - parts:
        parts |= more
    fields = (_FIELD.findall(body) for name, _, body in found if name in parts)
    return tuple(sorted({*chain.from_iterable(fields)}))


def is_factory(name: str) -> bool:
    """Return whether a name has the form ``package.module:factory``, a function to import."""
    module, separator, function = name.partition(":")
    return bool(separator) and all(map(str.isidentifier, [*module.split("."), function]))


def dataset_names_and_endings(task: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names that a task's `dataset` may have, and the endings of files that it reads.

    They are in ``reads`` of the task's class or of its base: a folder of modules, the function that
    reads a data set, and endings. Without endings it reads any path. A class of one's own is
    imported.
    """
    if is_factory(task):
        reads: str = getattr(own_function("task", task, "Class"), "reads", "")
    elif own := re.search(r'^    reads = "(.+)"', text := _texts(_PACKAGE / "tasks")[task], re.M):
        reads = own[1]
    else:
        (above,) = re.findall(r"^class \w+\((\w+)", text, re.M)
        return dataset_names_and_endings(
            next(name for name in modules("tasks") if name == above.lower())
        )
    if not reads:
        return ("none",), ("",)
    room, function, *endings = reads.split()
    without = () if room == "data/tables" else ("none",)
    return (*without, *modules(room, function)), tuple(endings) or ("",)


@cache
def rules() -> Mapping[str, tuple[str, str]]:
    """Return each aggregation rule's module and documentation, by the rule's name, in order.

    The documentation is the string below the rule, or its module's docstring if the module has no
    other rule.
    """
    found = {}
    for module, text in _texts(_PACKAGE / "aggregation").items():
        above, *rest = re.split(r"(?:Rule|replace)\((?:\w+, name=)?\s*[\"'](\w+)[\"']", text)
        names, below = rest[::2], rest[1::2]
        places = below if len(set(names)) > 1 else [above] * len(names)
        for name, place in zip(names, places, strict=True):
            said = re.search(r'(?ms)^r?"""(.+?)\s*"""', place)
            found[name] = module, said[1] if said else ""
    return {name: found[name] for name in sorted(found, key=str.lower)}


@cache
def attacks(base: str) -> Mapping[str, tuple[str, str]]:
    """Return each attack's module and class, by the attack's name: its class's in snake case."""
    found = {
        re.sub(r"\B([A-Z])", r"_\1", called).lower(): (module, called)
        for module, text in _texts(_PACKAGE / "attacks").items()
        for called in re.findall(rf"(?m)^class (\w+)\({base}\)", text)
    }
    return dict(sorted(found.items()))


@cache
def methods() -> tuple[str, ...]:
    """Return the names of the methods: their classes' names, or those that the classes give."""
    names = []
    for module, text in _texts(_PACKAGE / "methods").items():
        found = re.findall(r'(?m)^(?:class |    name: ClassVar\[str\] = ")(\w+)["(]', text)
        names += [name for name in found if name.lower() == module][-1:]
    return tuple(names)
