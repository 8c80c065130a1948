"""Names that begin with where they belong: parts of a map of tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

Anything = TypeVar("Anything")


def under(prefix: str, held: Mapping[str, Anything]) -> dict[str, Anything]:
    """Return what lies under names with a prefix, by the rest of its name."""
    return {name.removeprefix(prefix): v for name, v in held.items() if name.startswith(prefix)}
