"""Parts of a mapping of tensors, whose names begin with a prefix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

Anything = TypeVar("Anything")


def under(prefix: str, held: Mapping[str, Anything]) -> dict[str, Anything]:
    """Return the tensors whose names have a prefix, by the rest of their names."""
    return {name.removeprefix(prefix): v for name, v in held.items() if name.startswith(prefix)}
