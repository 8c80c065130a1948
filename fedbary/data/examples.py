"""Examples as tensors, from a file to the clients: to train on, to score, or to predict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from fedbary.data.deal import Split, prescribed, tenth, tenth_of_all, tenth_of_each_class
from fedbary.data.grouping import Units, one_of_each, require_apart
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
    groups : Tensor or None
        The group of each, (N,) int64, see `fedbary.data.grouping`; None where each stands alone.
    places : Tensor or None
        Place of each row in its source, (N,) int64; None where they are not known.
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
    groups: Tensor | None = None
    places: Tensor | None = None

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
            groups=None if self.groups is None else self.groups[index],
            places=None if self.places is None else self.places[index],
        )

    @property
    def counted(self) -> Tensor:
        """Mask (N,) of one example of each group, always the same; of all that stand alone."""
        if self.groups is None:
            return torch.ones(len(self.x), dtype=torch.bool)
        return one_of_each(self.groups, 0)

    def independent(self) -> Examples:
        """Return the examples that are `counted`."""
        return self if self.groups is None else self.part(self.counted.nonzero()[:, 0])

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

    def tested_groups(self, split: int) -> Tensor | None:
        """Return the groups of a split's test rows; None where each stands alone."""
        return None if self.groups is None else self.groups[self.split(split).test]

    def split(self, number: int) -> Split:
        """Return a split by its number, from 0: a prescribed one, or else a drawn tenth to test.

        Classes are drawn from one by one. A group is drawn as one row.

        Raises
        ------
        SettingError
            If there is no split of that number, none can be drawn, or one divides a group.
        """
        if split := prescribed(self.splits, number):
            if self.groups is not None:
                require_apart(self.source, self.groups[split.train], self.groups[split.test])
            return split
        rng = np.random.default_rng(derive_seed(number, "split"))
        units = Units.of(np.arange(len(self.strata)), self.groups)
        y = units.strata(self.strata)
        tested = tenth(len(y), rng) if y.dtype.kind == "f" else tenth_of_each_class(y, rng)
        if not tested.any() or tested.all():
            held, allowed = "no class of two rows, or groups", "a class with two rows, or groups"
            raise SettingError(self.source, held, allowed)
        return Split.where(tested[units.unit])

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
    groups = None
    if held.groups is not None or test.groups is not None:
        parts = (torch.arange(len(p.x)) if p.groups is None else p.groups for p in (held, test))
        groups = torch.cat([*parts])
    return replace(held, x=x, y=y, splits=(split,), groups=groups, places=None)
