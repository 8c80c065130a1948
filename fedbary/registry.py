"""The names that settings may hold, from the files that define them; PyTorch is not imported."""

from __future__ import annotations

import ast
import pkgutil
from pathlib import Path

from fedbary.syntax import tree

_PACKAGE = Path(__file__).parent


def modules(package: str, function: str = "") -> tuple[str, ...]:
    """Return the names of the public modules of a package within this one, in order.

    With the name of a function only those modules are returned that define it.
    """
    found = (module.name for module in pkgutil.iter_modules([str(_PACKAGE / package)]))
    public = sorted(name for name in found if not name.startswith("_"))
    return tuple(name for name in public if not function or function in _functions(package, name))


def _functions(package: str, module: str) -> set[str]:
    file = _PACKAGE / package / f"{module}.py"
    return {node.name for node in tree(file).body if isinstance(node, ast.FunctionDef)}


def is_factory(name: str) -> bool:
    """Whether a name has the form ``package.module:factory``, of a function to be imported."""
    module, separator, function = name.partition(":")
    return bool(separator) and all(map(str.isidentifier, [*module.split("."), function]))


def rules() -> tuple[str, ...]:
    """Return the names of the aggregation rules: the first text in what each file calls RULE."""
    names = []
    for module in modules("aggregation"):
        file = _PACKAGE / "aggregation" / f"{module}.py"
        for statement in tree(file).body:
            if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "RULE":
                nodes = ast.walk(statement.value)
                texts = [node.value for node in nodes if isinstance(node, ast.Constant)]
                names += [text for text in texts if isinstance(text, str)][:1]
    return tuple(names)
