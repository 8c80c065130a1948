"""The parameters of methods and networks, read from their files; PyTorch is not imported.

A method is a dataclass in `fedbary/methods/`, and a network's file in `fedbary/models/` has the
dataclass `Parameters`: the annotated fields with their defaults are settings, and the docstring
says what each means.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from fedbary.errors import SettingError
from fedbary.registry import modules

_PACKAGE = Path(__file__).parent

_KINDS: Mapping[str, type[float | int | bool | str]] = {
    "float": float,
    "int": int,
    "bool": bool,
    "str": str,
}

_WORDS = {"float": "a number", "int": "a whole number", "bool": "true or false", "str": "a text"}

_CHOICE = re.compile(r"Literal\[(.*)\]")

Value = float | int | bool | str


@dataclass(frozen=True)
class Parameter:
    """A setting that a method or a network owns.

    Parameters
    ----------
    name : str
        Its name on the command line.
    kind : str
        Its type, as the file has it.
    default : float, int, bool or str
        Its value where none is given: of a method the paper's.
    meaning : str
        What the docstring says of it, in one line.
    """

    name: str
    kind: str
    default: Value
    meaning: str

    def read(self, value: object) -> Value:
        """Return a value of the parameter's type for one from a file or a command line.

        Raises
        ------
        SettingError
            If it is none.
        """
        if choice := _CHOICE.fullmatch(self.kind):
            allowed = ast.literal_eval(f"[{choice[1]}]")
            if value not in allowed:
                raise SettingError(self.name, value, ", ".join(map(str, allowed)))
            return str(value)
        kind = _KINDS[self.kind]
        try:
            if kind is bool and isinstance(value, str):
                return {"true": True, "false": False}[value.lower()]
            if isinstance(value, bool) != (kind is bool) or not isinstance(value, Value):
                raise ValueError
            if kind is int and isinstance(value, float):
                raise ValueError
            return kind(value)
        except (ValueError, KeyError):
            raise SettingError(self.name, value, _WORDS[self.kind]) from None


@dataclass(frozen=True)
class MethodFile:
    """What a method's file says.

    Parameters
    ----------
    name, purpose : str
        What it is called, and what it is in a line.
    deterministic : bool
        Whether it trains point weights.
    parameters : mapping
        Its parameters by name.
    """

    name: str
    purpose: str
    deterministic: bool
    parameters: Mapping[str, Parameter]


@cache
def methods() -> Mapping[str, MethodFile]:
    """Return what every method's file says, by the method's name."""
    found = (_read_method(_PACKAGE / "methods" / f"{name}.py") for name in modules("methods"))
    return MappingProxyType({method.name: method for method in found})


@cache
def models() -> Mapping[str, Mapping[str, Parameter]]:
    """Return the parameters of every network, by the network's name."""
    return MappingProxyType(
        {
            name: _fields(definition)
            for name in modules("models")
            for definition in _classes(_PACKAGE / "models" / f"{name}.py")
            if definition.name == "Parameters"
        }
    )


def _read_method(file: Path) -> MethodFile:
    (definition,) = (
        found
        for found in _classes(file)
        if any(ast.unparse(base) == "Method" for base in found.bases)
    )
    deterministic = any(ast.unparse(node) == "deterministic = True" for node in definition.body)
    purpose = (ast.get_docstring(definition) or "").partition("\n")[0]
    return MethodFile(definition.name, purpose, deterministic, _fields(definition))


def _classes(file: Path) -> list[ast.ClassDef]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return [node for node in tree.body if isinstance(node, ast.ClassDef)]


def _fields(definition: ast.ClassDef) -> Mapping[str, Parameter]:
    """Return the fields of a dataclass that have a default."""
    meanings = _meanings(inspect.cleandoc(ast.get_docstring(definition) or ""))
    parameters = {}
    for node in definition.body:
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            name = ast.unparse(node.target)
            default = ast.literal_eval(node.value)
            meaning = meanings.get(name, "")
            parameters[name] = Parameter(name, ast.unparse(node.annotation), default, meaning)
    return MappingProxyType(parameters)


def _meanings(docstring: str) -> dict[str, str]:
    """Return what the section Parameters of a docstring says of each."""
    section = re.search(r"Parameters\n-+\n(.*?)(\n\n\w[^\n]*\n-+\n|\Z)", docstring, re.DOTALL)
    meanings: dict[str, str] = {}
    names: list[str] = []
    for line in section[1].splitlines() if section else []:
        if line and not line.startswith(" "):
            names = [name.strip() for name in line.partition(":")[0].split(",")]
        for name in names:
            if line.startswith(" "):
                meanings[name] = f"{meanings.get(name, '')} {line.strip()}".strip()
    return meanings
