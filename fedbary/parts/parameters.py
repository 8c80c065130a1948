"""Parameters of parts: dataclass fields whose types give the allowed values.

A part's parameters are the fields of a frozen dataclass. Each has a default and a type: one of
those below, ``float``, ``int``, ``bool``, ``str`` or ``Literal[…]``, perhaps ``| None``. The type
gives the allowed range. The docstring's section Parameters gives the meaning.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields
from functools import cache
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from pydantic import Field, InstanceOf, TypeAdapter, ValidationError

from fedbary.errors import SettingError
from fedbary.texts import listed

MOST = 10**9
"""The largest number of anything."""

Positive = Annotated[float, Field(gt=0, lt=math.inf)]
NotNegative = Annotated[float, Field(ge=0, lt=math.inf)]
Ratio = Annotated[float, Field(ge=1, lt=math.inf)]
Share = Annotated[float, Field(gt=0, le=1)]
ShareOrZero = Annotated[float, Field(ge=0, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]
BelowHalf = Annotated[float, Field(ge=0, lt=0.5)]
LogVar = Annotated[float, Field(ge=-40, le=40)]
Count = Annotated[int, Field(ge=1, le=MOST)]
Number = Annotated[int, Field(ge=0, le=MOST)]
Several = Annotated[int, Field(ge=2, le=MOST)]
Units = Annotated[int, Field(ge=1, le=10**4)]
InsideUnit = Annotated[float, Field(gt=0, lt=1)]
NameList = Annotated[str, Field(title="names")]
"""Names with commas between; a list of them in a YAML file."""

NONE = "none"
"""Text for None, if a parameter may have no value."""

Value = float | int | bool | str | None

_Part = TypeVar("_Part")

_WORDS = {float: "a number", int: "a whole number", bool: "true or false", str: "a text"}

_BOUNDS = {"gt": "above {}", "ge": "from {}", "lt": "to below {}", "le": "to {}"}
"""Each bound in words."""


def arms(kind: Any) -> tuple[Any, ...]:
    """Return the alternatives of a type."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def allowed(kind: Any) -> str:
    """Describe the values that a type allows."""
    words = [
        ", ".join(map(str, get_args(arm))) if get_origin(arm) is Literal else _said(arm)
        for arm in arms(kind)
        if bare(arm) is not None
    ]
    return ", or ".join([NONE, *words] if NoneType in arms(kind) else words)


def bare(kind: Any) -> Any:
    """Return the type to read a text as: float, int, bool, str, Literal; None for others."""
    found = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    return found if found in _WORDS or get_origin(found) is Literal else None


def _said(kind: Any) -> str:
    constraints = get_args(kind)[1].metadata if get_origin(kind) is Annotated else ()
    bounds = [(n, getattr(c, n)) for c in constraints for n in _BOUNDS if hasattr(c, n)]
    bounds = [(name, bound) for name, bound in bounds if bound != math.inf]
    words = [_WORDS[bare(kind)], *(_BOUNDS[name].format(bound) for name, bound in bounds)]
    return " ".join([*words, "up"] if [name for name, _ in bounds] == ["ge"] else words)


@cache
def _adapter(kinds: tuple[Any, ...]) -> TypeAdapter[Any]:
    """Return what reads and checks values of some types; other classes by `isinstance`."""
    others: Any = InstanceOf
    read: Any = tuple(kind if bare(kind) or kind is NoneType else others[kind] for kind in kinds)
    return TypeAdapter(Union[read])  # noqa: UP007


@dataclass(frozen=True)
class Parameter:
    """A setting that a part owns.

    Parameters
    ----------
    name : str
        Its name on the command line.
    kind : type
        Its type, as the part declares it.
    default : float, int, bool, str or None
        Its default; for a method the paper's.
    meaning : str
        Its docstring, in one line.
    """

    name: str
    kind: Any
    default: Value
    meaning: str

    @property
    def allowed(self) -> str:
        """Allowed values, in words."""
        return allowed(self.kind)

    def check(self, value: Any) -> None:
        """Raise a SettingError unless the type allows a value, in kind and in range."""
        held = value.item() if isinstance(value, np.number) else value
        try:
            _adapter(arms(self.kind)).validate_python(held, strict=True)
        except ValidationError:
            raise SettingError(self.name, value, self.allowed) from None

    def read(self, value: object) -> Value:
        """Return a value of the parameter's type for one from a file or a command line.

        ``str | Rule`` is read as the former; the latter is for Python alone.

        Raises
        ------
        SettingError
            If it is none, or out of its range.
        """
        kinds = arms(self.kind)
        if isinstance(value, list | tuple) and NameList in kinds:
            value = self._joined(value)
        text = str(value)
        choices = {
            str(c): c for kind in kinds if get_origin(kind) is Literal for c in get_args(kind)
        }
        if NoneType in kinds and text.lower() == NONE:
            return None
        if isinstance(value, tuple(_WORDS)) and isinstance(value, bool) <= (bool in kinds):
            if text in choices:
                return choices[text]
            with suppress(ValidationError):
                found: Value = _adapter(kinds).validate_strings(text, strict=True)
                if not isinstance(found, int) or str(found).lower() == text.lower():
                    return found  # pydantic takes 4.0 for a whole number, and 1 for true
        raise SettingError(self.name, value, self.allowed)

    def _joined(self, names: Sequence[object]) -> str:
        """Return names with commas between; a name with a comma stands in quotes."""
        for name in names:
            if not isinstance(name, str | int) or isinstance(name, bool):
                said = "names; put quotes around a name that YAML reads as something else"
                raise SettingError(self.name, name, said)
        return listed(names, ",")


def declared(part: type) -> Mapping[str, Parameter]:
    """Return the parameters that a dataclass declares, inherited ones too, by name.

    Raises
    ------
    SettingError
        If it is no dataclass, or a field lacks a default, has a default that its type does not
        allow, or has a type of another kind.
    """
    return _declared(part)


@cache
def _declared(part: Any) -> Mapping[str, Parameter]:
    if "__dataclass_fields__" not in vars(part):
        raise SettingError(f"{part.__module__}", part.__qualname__, "@dataclass(frozen=True) of it")
    said: dict[str, str] = {}
    for above in reversed(part.__mro__):
        said |= meanings(inspect.cleandoc(above.__doc__ or ""))
    kinds = get_type_hints(part, include_extras=True)
    found = {}
    for field in fields(part):
        place = f"{part.__module__}.{part.__qualname__}: {field.name}"
        kind = kinds[field.name]
        if all(bare(arm) is None for arm in arms(kind)):
            raise SettingError(place, kind, "float, int, bool, str or Literal[…]")
        if field.default is MISSING:
            raise SettingError(place, "no default", allowed(kind))
        parameter = Parameter(field.name, kind, field.default, said.get(field.name, ""))
        try:
            parameter.read(field.default)
        except SettingError as error:
            raise SettingError(place, field.default, error.allowed) from None
        found[field.name] = parameter
    return MappingProxyType(found)


def parameters_of(part: type[_Part], words: Mapping[str, object]) -> _Part:
    """Return a part's parameters with the values that words give them.

    Parameters
    ----------
    part
        The part's dataclass.
    words
        Values by name, as in a run's settings. Other parts' words are ignored. A parameter without
        a word has its default.

    Raises
    ------
    SettingError
        If a value is out of its range.
    """
    own = declared(part)
    return part(**{name: own[name].read(words[name]) for name in own if name in words})


class Checked:
    """A dataclass of parameters that checks each against its type's range.

    Raises
    ------
    SettingError
        If a parameter is out of its range.
    """

    def __post_init__(self) -> None:
        """Check every parameter."""
        for parameter in declared(type(self)).values():
            parameter.check(getattr(self, parameter.name))


def meanings(docstring: str) -> dict[str, str]:
    """Return each parameter's meaning, from a docstring's section Parameters."""
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
