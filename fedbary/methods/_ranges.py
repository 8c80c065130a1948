"""What a method's parameters may be: each function raises a SettingError that names what is not."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

from fedbary.errors import SettingError

MOST = 10**9
"""The largest number of anything."""


def positive(method: object, *names: str) -> None:
    """Require finite numbers above 0."""
    _require(method, names, lambda value: 0 < value < math.inf, "a number above 0")


def not_negative(method: object, *names: str) -> None:
    """Require finite numbers from 0 up."""
    _require(method, names, lambda value: 0 <= value < math.inf, "a number from 0 up")


def whole(method: object, least: int, *names: str) -> None:
    """Require whole numbers from a least one to `MOST`."""
    allowed = f"a whole number from {least} to {MOST}"
    _require(method, names, lambda value: least <= value <= MOST, allowed)


def part(method: object, *names: str) -> None:
    """Require numbers above 0 to 1."""
    _require(method, names, lambda value: 0 < value <= 1, "above 0 to 1")


def below_one(method: object, *names: str) -> None:
    """Require numbers from 0 to below 1."""
    _require(method, names, lambda value: 0 <= value < 1, "from 0 to below 1")


def one_of(method: object, name: str, words: Collection[str]) -> None:
    """Require one of some words."""
    allowed = f"{', '.join(words)} for method={type(method).__name__}"
    _require(method, (name,), lambda value: value in words, allowed)


def _require(
    method: object, names: Collection[str], holds: Callable[..., bool], allowed: str
) -> None:
    for name in names:
        value = getattr(method, name)
        if not holds(value):
            raise SettingError(name, value, allowed)
