"""The parameters of methods and networks, read from their files; PyTorch is not imported.

A method is a dataclass in `fedbary/methods/`, and a network's file in `fedbary/models/` has the
dataclass `Parameters`: the annotated fields with their defaults, inherited ones too, are settings,
and the docstring says what each means.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fedbary.errors import SettingError
from fedbary.registry import modules
from fedbary.settings.sources import Source, classes

_PACKAGE = Path(__file__).parents[1]

KINDS: Mapping[str, type[float | int | bool | str]] = {
    "float": float,
    "int": int,
    "bool": bool,
    "str": str,
}

_WRITTEN = (float, int, bool, str)

_WORDS = {"float": "a number", "int": "a whole number", "bool": "true or false", "str": "a text"}

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

_CHOICE = re.compile(r"Literal\[(.*)\]")

NONE = "none"
"""How None is written where a parameter may have no value."""

Value = float | int | bool | str | None


@dataclass(frozen=True)
class Parameter:
    """A setting that a method or a network owns.

    Parameters
    ----------
    name : str
        Its name on the command line.
    kind : str
        Its type, as the file has it, without what a text cannot be.
    default : float, int, bool, str or None
        Its value where none is given: of a method the paper's.
    optional : bool
        Whether it may be None.
    meaning : str
        What the docstring says of it, in one line.
    """

    name: str
    kind: str
    default: Value
    meaning: str
    optional: bool = False

    def read(self, value: object) -> Value:
        """Return a value of the parameter's type for one from a file or a command line.

        Raises
        ------
        SettingError
            If it is none.
        """
        if self.optional and (value is None or str(value).lower() == NONE):
            return None
        if choice := _CHOICE.fullmatch(self.kind):
            allowed = {str(held): held for held in ast.literal_eval(f"[{choice[1]}]")}
            if str(value) not in allowed:
                raise SettingError(self.name, value, ", ".join(allowed))
            found: Value = allowed[str(value)]
            return found
        kind = KINDS[self.kind]
        try:
            if kind is bool and isinstance(value, str):
                return {"true": True, "false": False}[value.lower()]
            if isinstance(value, bool) != (kind is bool) or not isinstance(value, _WRITTEN):
                raise ValueError
            if kind is int and isinstance(value, float):
                raise ValueError
            return kind(value)
        except (ValueError, KeyError):
            word = f"{NONE}, or {_WORDS[self.kind]}" if self.optional else _WORDS[self.kind]
            raise SettingError(self.name, value, word) from None


@dataclass(frozen=True)
class MethodFile:
    """What a method's file says.

    Parameters
    ----------
    module, defines, name, purpose : str
        The module and the class in it, what the method is called, and what it is in a line.
    deterministic, squares, personalises, needs_bench, samples_along : bool
        Whether it trains point weights (None: either kind); a regression's on squared errors,
        without a noise of the network's own; whether clients have models of their own, and the
        server a network and examples; whether its samples are points along the steps.
    called_by : str
        The setting whose value is what its runs are called.
    unused : set of str
        Settings that other methods use and this one does not.
    parameters : mapping
        Its parameters by name.
    """

    module: str
    defines: str
    name: str
    purpose: str
    deterministic: bool | None
    squares: bool
    personalises: bool
    needs_bench: bool
    samples_along: bool
    called_by: str
    unused: frozenset[str]
    parameters: Mapping[str, Parameter]


@cache
def methods() -> Mapping[str, MethodFile]:
    """Return what every method's file says, by the method's name.

    Raises
    ------
    SettingError
        If a file has no method, or several, or a field without a default that can be read.
    """
    found = (_read_method(_PACKAGE / "methods" / f"{name}.py") for name in modules("methods"))
    return MappingProxyType({method.name: method for method in found})


@cache
def models() -> Mapping[str, Mapping[str, Parameter]]:
    """Return the parameters of every network, by the network's name."""
    return MappingProxyType(
        {
            name: _fields(source)
            for name in modules("models")
            for source in classes(_PACKAGE / "models" / f"{name}.py")
            if source.name == "Parameters"
        }
    )


def _read_method(file: Path) -> MethodFile:
    found = [source for source in classes(file) if _is_method(source)]
    if len(found) != 1:
        names = ", ".join(source.name for source in found) or "none"
        raise SettingError(f"{file}: methods", names, "one public class that inherits from Method")
    (source,) = found
    flags: dict[str, Any] = {}
    for above in source.lineage():
        flags |= _constants(above)
    parameters = _fields(source)
    unused = {*flags["unused"], *_OF_RULES, *(_OF_POSTERIORS if flags["deterministic"] else ())}
    purpose = (ast.get_docstring(source.definition) or "").partition("\n")[0]
    return MethodFile(
        module=file.stem,
        defines=source.name,
        name=_constants(source).get("name", source.name),
        purpose=purpose,
        deterministic=flags["deterministic"],
        squares=bool(flags["squares"]),
        personalises=bool(flags["personalises"]),
        needs_bench=bool(flags["needs_bench"]),
        samples_along=bool(flags["samples_along"]),
        called_by=flags["called_by"],
        unused=frozenset(unused - parameters.keys()),
        parameters=parameters,
    )


def _is_method(source: Source) -> bool:
    above = [other.name for other in source.lineage()[:-1]]
    return "Method" in above and not source.name.startswith("_")


def _constants(source: Source) -> dict[str, Any]:
    """Return the attributes that a class sets to values which are written out."""
    found = {}
    for node in source.definition.body:
        target, text = _assigned(node)
        with suppress(ValueError, SyntaxError):
            found[target] = ast.literal_eval(text)
    return found


def _assigned(node: ast.stmt) -> tuple[str, str]:
    """Return what a line sets and to what, as texts; empty ones for other lines."""
    if isinstance(node, ast.Assign):
        return ast.unparse(node.targets[0]), ast.unparse(node.value)
    if isinstance(node, ast.AnnAssign) and node.value and _is_of_class(node):
        return ast.unparse(node.target), ast.unparse(node.value)
    return "", ""


def _is_of_class(node: ast.AnnAssign) -> bool:
    """Whether a line says something of the class, and is no field."""
    return "ClassVar" in ast.unparse(node.annotation)


def _fields(source: Source) -> Mapping[str, Parameter]:
    """Return the fields of a dataclass, with those that it inherits."""
    parameters: dict[str, Parameter] = {}
    for above in source.lineage():
        text = inspect.cleandoc(ast.get_docstring(above.definition) or "")
        said = meanings(text)
        for node in above.definition.body:
            if isinstance(node, ast.AnnAssign) and not _is_of_class(node):
                name = ast.unparse(node.target)
                inherited = parameters[name].meaning if name in parameters else ""
                parameters[name] = _field(name, node, said.get(name, inherited), above.file)
                if not any("dataclass" in ast.unparse(d) for d in above.definition.decorator_list):
                    place = f"{above.file}: {above.name}"
                    raise SettingError(place, name, "a field only after @dataclass(frozen=True)")
    return MappingProxyType(parameters)


def _field(name: str, node: ast.AnnAssign, meaning: str, file: Path) -> Parameter:
    default = node.value and ast.unparse(node.value)
    kind, optional = kind_of(ast.unparse(node.annotation))
    if kind not in KINDS and not _CHOICE.fullmatch(kind):
        raise SettingError(f"{file}: {name}", kind, f"{', '.join(KINDS)} or Literal[…]")
    try:
        value = ast.literal_eval(default or "")
        parameter = Parameter(name, kind, value, meaning, optional)
        parameter.read(value)
    except (ValueError, SyntaxError, TypeError):
        allowed = f"a default of type {kind}, written out: it is read, not run"
        raise SettingError(f"{file}: {name}", default, allowed) from None
    return parameter


def kind_of(annotation: str) -> tuple[str, bool]:
    """Return the type that a text may be read as, and whether None is allowed too.

    Of ``str | Rule`` the former is ``str``: what else is allowed is for Python alone.
    """
    if _CHOICE.fullmatch(annotation):
        return annotation, False
    kinds = annotation.split(" | ")
    return next((kind for kind in kinds if kind in KINDS), annotation), "None" in kinds


def meanings(docstring: str) -> dict[str, str]:
    """Return what the section Parameters of a docstring says of each."""
    section = re.search(r"Parameters\n-+\n(.*?)(\n\n\w[^\n]*\n-+\n|\Z)", docstring, re.DOTALL)
    found: dict[str, str] = {}
    names: list[str] = []
    for line in section[1].splitlines() if section else []:
        if line and not line.startswith(" "):
            names = [name.strip() for name in line.partition(":")[0].split(",")]
        for name in names:
            if line.startswith(" "):
                found[name] = f"{found.get(name, '')} {line.strip()}".strip()
    return found
