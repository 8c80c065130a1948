"""A user's own examples, shown to a model after its training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs with a name each, and their targets where they are known.

    Attributes
    ----------
    names : tuple of str
        Name of each: its file, or its row, counted from 1.
    x : Tensor
        Inputs (N, …), in their own units.
    y : Tensor or None
        Targets (N,), None where they are not known.
    columns : mapping of str to ndarray
        Further columns, (N,) by name; scores can be grouped by them.
    unused : tuple of str
        Columns of a table that are neither inputs nor targets.
    converted : tuple of str
        Names of the pictures whose colours were converted.
    notes : tuple of str
        Lines on inputs that were not read, and on changes to those that were.
    unknown : tuple of int
        Places of rows that the model cannot predict; they go to a person.
    lacking : str
        Description of what is missing in these rows.
    """

    names: tuple[str, ...]
    x: Tensor
    y: Tensor | None
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    converted: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unknown: tuple[int, ...] = ()
    lacking: str = "a level that the model does not know"

    def part(self, index: Tensor) -> Examples:
        """Return the examples at some places, (M,) int64."""
        places = index.tolist()
        y = None if self.y is None else self.y[index]
        columns = {name: values[places] for name, values in self.columns.items()}
        names = tuple(self.names[place] for place in places)
        unknown = tuple(at for at, place in enumerate(places) if place in self.unknown)
        return replace(self, names=names, x=self.x[index], y=y, columns=columns, unknown=unknown)

    def known(self) -> Examples:
        """Return the examples without those that go to a person."""
        if not self.unknown:
            return self
        kept = set(range(len(self.names))).difference(self.unknown)
        return self.part(torch.tensor(sorted(kept), dtype=torch.int64))
