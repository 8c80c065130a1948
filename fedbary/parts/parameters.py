"""Parameters of parts: dataclass fields whose types give the allowed values.

A part's parameters are the fields of a frozen dataclass. Each has a default and a type: one of
those below, ``float``, ``int``, ``bool``, ``str`` or ``Literal[…]``, perhaps ``| None``. The type
gives the allowed range. The docstring's section Parameters gives the meaning.
"""

from __future__ import annotations

import inspect
import math
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache, cached_property, lru_cache
from numbers import Integral, Real
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, Field

from fedbary.errors import SettingError

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

_BOUNDS = {
    "gt": ("above {}", operator.gt),
    "ge": ("from {}", operator.ge),
    "lt": ("to below {}", operator.lt),
    "le": ("to {}", operator.le),
}
"""Each bound in words, and its test of a value."""


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
    words = [_WORDS[bare(kind)]]
    bounds = [(name, bound) for name, bound in _bounds(kind) if bound != math.inf]
    words += [_BOUNDS[name][0].format(bound) for name, bound in bounds]
    return " ".join([*words, "up"] if [name for name, _ in bounds] == ["ge"] else words)


def _bounds(kind: Any) -> Iterator[tuple[str, float]]:
    for field in get_args(kind)[1:] if get_origin(kind) is Annotated else ():
        for constraint in field.metadata:
            yield from ((n, getattr(constraint, n)) for n in _BOUNDS if hasattr(constraint, n))


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

    @cached_property
    def _arms(self) -> tuple[tuple[Any, Any, tuple[tuple[str, float], ...]], ...]:
        """Each type that a value may have, as what a text is read for it, and its bounds."""
        return tuple((arm, bare(arm), tuple(_bounds(arm))) for arm in arms(self.kind))

    def check(self, value: Any) -> None:
        """Raise a SettingError unless the type allows a value, in kind and in range."""
        if not any(_fits(*arm, value) for arm in self._arms):
            raise SettingError(self.name, value, self.allowed)

    def read(self, value: object) -> Value:
        """Return a value of the parameter's type for one from a file or a command line.

        ``str | Rule`` is read as the former; the latter is for Python alone.

        Raises
        ------
        SettingError
            If it is none, or out of its range.
        """
        kinds = [kind for kind, _, _ in self._arms]
        if isinstance(value, list | tuple) and NameList in kinds:
            value = self._joined(value)
        if NoneType in kinds and (value is None or str(value).lower() == NONE):
            return None
        for kind in (kind for _, kind, _ in self._arms if kind is not None):
            try:
                found = _read(kind, value)
            except (ValueError, KeyError):
                continue
            self.check(found)
            return found
        raise SettingError(self.name, value, self.allowed)

    def _joined(self, names: Sequence[object]) -> str:
        """Return names with commas between."""
        for name in names:
            if not isinstance(name, str | int) or isinstance(name, bool):
                said = "names; put quotes around a name that YAML reads as something else"
                raise SettingError(self.name, name, said)
            if "," in str(name):
                raise SettingError(self.name, name, "names without commas")
        return ",".join(map(str, names))


def _fits(arm: Any, kind: Any, bounds: Sequence[tuple[str, float]], value: Any) -> bool:
    """Return whether one type allows a value; numbers are those of numpy, too."""
    if get_origin(kind) is Literal:
        return isinstance(value, bool | int | float | str) and value in get_args(kind)
    if kind not in (int, float):
        return isinstance(value, kind or get_origin(arm) or arm)
    right = isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    return right and all(_BOUNDS[name][1](value, bound) for name, bound in bounds)


def _read(kind: Any, value: object) -> Value:
    if get_origin(kind) is Literal:
        choice: Value = {str(held): held for held in get_args(kind)}[str(value)]
        return choice
    if kind is bool and isinstance(value, str):
        return {"true": True, "false": False}[value.lower()]
    if isinstance(value, bool) != (kind is bool) or not isinstance(value, tuple(_WORDS)):
        raise ValueError
    if kind is int and isinstance(value, float):
        raise ValueError
    found: Value = kind(value)
    return found


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


def told(part: type[_Part], values: object) -> _Part:
    """Return a part's parameters with the values of an object's attributes of these names.

    Raises
    ------
    SettingError
        If one is out of its range.
    """
    own: Any = part
    found: _Part = (_told_once if isinstance(values, BaseModel) else _told)(own, values)
    return found


def _told(part: Any, values: object) -> Any:
    own = declared(part)
    held = {name: getattr(values, name) for name in own if hasattr(values, name)}
    return part(**{name: own[name].read(value) for name, value in held.items()})


_told_once = lru_cache(256)(_told)
"""The same of settings, which are frozen; every message asks for some parts' again."""


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
