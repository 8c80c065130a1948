"""The names that settings may hold, from the files of a package's parts, which are not imported."""

from __future__ import annotations

import pkgutil
import re
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


@cache
def modules(package: str, function: str = "") -> tuple[str, ...]:
    """Return the names of the public modules of a package of fedbary, in order.

    With the name of a function only those modules are returned that define it.
    """
    found = [
        module for module in pkgutil.iter_modules([str(_PACKAGE / package)]) if not module.ispkg
    ]
    public = sorted(module.name for module in found if not module.name.startswith("_"))
    begins = f"\ndef {function}("
    return tuple(name for name in public if not function or begins in _text(package, name))


def _text(package: str, module: str) -> str:
    return (_PACKAGE / package / f"{module}.py").read_text(encoding="utf-8")


def is_factory(name: str) -> bool:
    """Whether a name has the form ``package.module:factory``, of a function to be imported."""
    module, separator, function = name.partition(":")
    return bool(separator) and all(map(str.isidentifier, [*module.split("."), function]))


def rules() -> tuple[str, ...]:
    """Return the names of the aggregation rules."""
    return _named("aggregation", r'^RULE = [^"]*"(\w+)"')


def methods() -> tuple[str, ...]:
    """Return the names of the methods: of its class, unless that says another."""
    return _named("methods", r'^class (\w+)\(|^    name: ClassVar\[str\] = "(\w+)"')


@cache
def _named(package: str, form: str) -> tuple[str, ...]:
    """Return the last name in each file that has a form and is the file's but for its writing."""
    names = []
    for module in modules(package):
        plain = module.replace("_", "")
        found = ("".join(m.groups("")) for m in re.finditer(form, _text(package, module), re.M))
        names += [name for name in found if name.lower() == plain][-1:]
    return tuple(names)
