"""Examples as tensors, from a file to the clients: to train on, to score, or to predict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from fedbary.data.deal import Split, prescribed, tenth, tenth_of_all, tenth_of_each_class
from fedbary.data.layout import Layout
from fedbary.errors import SettingError
from fedbary.seeds import derive_seed


@dataclass(frozen=True, eq=False)
class Examples:
    """N inputs in their own units, and their targets where they are known.

    Attributes
    ----------
    x : Tensor
        Inputs (N, …); of a table finite float64, or NaN where a value is missing.
    y : Tensor or None
        Targets (N,): int64 labels, or float64 numbers; None where they are not known.
    source : str
        The name of their source, for errors.
    layout : Layout
        Meaning of a table's features and labels.
    splits : tuple of Split
        The splits that the source prescribes; empty if it prescribes none.
    files : tuple of str
        Name of each; empty for rows, whose names are their numbers, counted from 1.
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

    x: Tensor
    y: Tensor | None
    source: str = ""
    layout: Layout = Layout((), ())
    splits: tuple[Split, ...] = ()
    files: tuple[str, ...] = ()
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    converted: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unknown: tuple[int, ...] = ()
    lacking: str = "a level that the model does not know"

    @property
    def names(self) -> tuple[str, ...]:
        """Name of each: its file, or its row, counted from 1."""
        return self.files or tuple(map(str, range(1, len(self.x) + 1)))

    def part(self, index: Tensor) -> Examples:
        """Return the examples at some places, (M,) int64."""
        places, names, lost = index.tolist(), self.names, set(self.unknown)
        now = torch.full((len(self.x),), -1)
        now[index] = torch.arange(len(index))
        sides = ([now[side] for side in (split.train, split.test)] for split in self.splits)
        return replace(
            self,
            x=self.x[index],
            y=None if self.y is None else self.y[index],
            splits=tuple(Split(*(side[side >= 0] for side in both)) for both in sides),
            files=tuple(names[place] for place in places),
            columns={name: values[places] for name, values in self.columns.items()},
            unknown=tuple(at for at, place in enumerate(places) if place in lost),
        )

    def known(self) -> Examples:
        """Return the examples without those that go to a person."""
        if not self.unknown:
            return self
        kept = set(range(len(self.x))).difference(self.unknown)
        return self.part(torch.tensor(sorted(kept), dtype=torch.int64))

    # How they are dealt, see `fedbary.data.deal.Dealable`

    @property
    def examples(self) -> tuple[Tensor, Tensor]:
        """All inputs and targets."""
        return self.x, self.strata

    @property
    def strata(self) -> Tensor:
        """Values that examples are dealt by, (N,): their targets."""
        assert self.y is not None
        return self.y

    def parted(self, split: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return the numbers of a split's training rows, and its test inputs and targets."""
        parts = self.split(split)
        return parts.train, (self.x[parts.test], self.strata[parts.test])

    def split(self, number: int) -> Split:
        """Return a split by its number, from 0: a prescribed one, or else a drawn tenth to test.

        Classes are drawn from one by one.

        Raises
        ------
        SettingError
            If there is no split of that number, or none can be drawn.
        """
        if split := prescribed(self.splits, number):
            return split
        rng, y = np.random.default_rng(derive_seed(number, "split")), self.strata
        tested = (
            tenth(len(y), rng) if y.is_floating_point() else tenth_of_each_class(y.numpy(), rng)
        )
        if not tested.any():
            raise SettingError(self.source, "no class of two rows", "a class with two rows")
        return Split.where(tested)

    def validation(self, targets: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw a tenth of training rows with these targets, of each class: a mask."""
        draw = tenth_of_all if targets.dtype.kind == "f" else tenth_of_each_class
        return draw(targets, rng)


@lru_cache(maxsize=4)
def with_test(held: Examples, test: Examples) -> Examples:
    """Return rows of which those of another set, coded alike, are tested."""
    train = torch.arange(len(held.x))
    split = Split(train, len(train) + torch.arange(len(test.x)))
    x, y = torch.cat([held.x, test.x]), torch.cat([held.strata, test.strata])
    return replace(held, x=x, y=y, splits=(split,))
