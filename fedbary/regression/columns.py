"""What all sites of a regression must agree on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Columns:
    """The features, by name, in their order."""

    features: tuple[str, ...]

    @property
    def classes(self) -> tuple[str, ...]:
        """None: a number is predicted."""
        return ()

    def config(self) -> dict[str, list[str]]:
        """Return what a ConfigRecord holds of it."""
        return {"features": list(self.features)}

    @staticmethod
    def from_config(config: Mapping[str, Sequence[str]]) -> Columns:
        """Return the columns that a ConfigRecord describes."""
        return Columns(tuple(map(str, config["features"])))
