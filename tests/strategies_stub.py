"""The signatures of all strategies, for editors and type checkers: `strategies/__init__.pyi`.

`PYTHONPATH=. python tests/strategies_stub.py` writes the file anew.
"""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from inspect import Parameter
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from fedbary import strategies
from fedbary.aggregation import RULES
from fedbary.methods import METHODS
from fedbary.strategies import MethodStrategy, PosteriorStrategy, strategy_for

SOURCE = Path(strategies.__file__).with_suffix(".py")
FILE = SOURCE.with_suffix(".pyi")

HEAD = '''
"""Flower strategies that aggregate Gaussian posteriors, one class per rule and per method.

This file is generated: `PYTHONPATH=. python tests/strategies_stub.py`.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from flwr.app import ArrayRecord

from fedbary.aggregation import JointRule, RobustRule, Rule
from fedbary.methods import Bench
from fedbary.settings.modes import Asynchronous as Asynchronous

from .method_strategy import AggregateMetrics
from .strategy import PosteriorStrategy as _PosteriorStrategy
'''


def text() -> str:
    """Return the whole file."""
    imports = [
        f"from .{each.module} import {name.name} as {name.name}"
        for each in ast.parse(SOURCE.read_text(encoding="utf-8")).body
        if isinstance(each, ast.ImportFrom) and each.level
        for name in each.names
        if name.name != "PosteriorStrategy"
    ]
    methods = [strategy_for(name) for name in METHODS if METHODS[name].called_by == "method"]
    classes = [
        _class(PosteriorStrategy, "_PosteriorStrategy", _constructor(PosteriorStrategy)),
        *(
            _class(strategy_for(name), "PosteriorStrategy", "")
            for name in RULES
            if name != "FedAvg"
        ),
        *(_class(kind, kind.__bases__[0].__name__, _constructor(kind)) for kind in methods),
    ]
    written = "\n".join([HEAD.strip(), *imports, *classes])
    return _ruff(_ruff(written, "check", "--fix", "-q", "--select", "I"), "format")


def _class(kind: type[MethodStrategy], base: str, body: str) -> str:
    purpose = (kind.__doc__ or "").partition("\n")[0]
    return f'class {kind.__name__}({base}):\n    """{purpose}"""\n    {body}'


def _constructor(kind: type[MethodStrategy]) -> str:
    hints = get_type_hints(kind.method_class)
    hints |= get_type_hints(METHODS["Hierarchy"]) if issubclass(kind, PosteriorStrategy) else {}
    parameters = list(inspect.signature(kind).parameters.values())
    first = [p for p in parameters if p.kind is Parameter.POSITIONAL_OR_KEYWORD]
    listed = [_argument(p, hints) for p in parameters]
    listed.insert(len(first), "*")
    return f"def __init__(self, {', '.join(listed)}) -> None: ..."


def _argument(parameter: Parameter, hints: dict[str, Any]) -> str:
    name, default = parameter.name, parameter.default
    kind = _written(hints[name]) if name in hints else parameter.annotation
    return f"{name}: {kind} = {'...' if default is ... else repr(default)}"


def _written(hint: Any) -> str:
    """Return how a type is written."""
    if get_origin(hint) in (Union, UnionType):
        return " | ".join(map(_written, get_args(hint)))
    if isinstance(hint, type):
        return "None" if hint is NoneType else hint.__name__
    return str(hint).replace("typing.", "")


def _ruff(source: str, *words: str) -> str:
    command = [sys.executable, "-m", "ruff", *words, "--stdin-filename", str(FILE), "-"]
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=True)
    return done.stdout


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
