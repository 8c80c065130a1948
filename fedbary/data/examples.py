"""Examples of one's own: what a model is shown after its training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs with a name each, and their targets where they are known.

    Attributes
    ----------
    names : tuple of str
        What each is called: its file, or its row, counted from 1.
    x : Tensor
        Inputs (N, …), in their own units.
    y : Tensor or None
        Targets (N,), None where they are not known.
    columns : mapping of str to ndarray
        What else is known of each, (N,) by name, by which scores can be told apart.
    unused : tuple of str
        Those of a table's columns that are neither inputs nor targets.
    converted : tuple of str
        Names of the pictures whose colours were converted.
    unknown : tuple of int
        Places of the rows with a level that the model does not know; they go to a person.
    """

    names: tuple[str, ...]
    x: Tensor
    y: Tensor | None
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    converted: tuple[str, ...] = ()
    unknown: tuple[int, ...] = ()

    def known(self) -> Examples:
        """Return the examples without those that go to a person."""
        if not self.unknown:
            return self
        kept = np.delete(np.arange(len(self.names)), self.unknown)
        return replace(
            self,
            names=tuple(self.names[place] for place in kept),
            x=self.x[kept],
            y=None if self.y is None else self.y[kept],
            columns={name: values[kept] for name, values in self.columns.items()},
            unknown=(),
        )
