"""Rows coded as numbers by a layout, whatever their target is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from fedbary.data.split import Split, prescribed
from fedbary.data.tables._layout import Layout
from fedbary.seeds import derive_seed


@dataclass(frozen=True, eq=False)
class Coded(ABC):
    """A set of rows in its own units.

    Attributes
    ----------
    name : str
        Its source.
    layout : Layout
        Meaning of the columns of ``x`` and of the labels.
    x : Tensor
        Features, (N, D), finite float64; D is the number of ``layout.features``.
    y : Tensor
        Targets, (N,).
    splits : tuple of Split
        The splits that the source prescribes; empty if it prescribes none.
    unused : tuple of str
        Columns of the source that the layout does not have.
    """

    name: str
    layout: Layout
    x: Tensor
    y: Tensor
    splits: tuple[Split, ...] = ()
    unused: tuple[str, ...] = ()

    @property
    def examples(self) -> tuple[Tensor, Tensor]:
        """All features and targets."""
        return self.x, self.y

    @property
    def strata(self) -> Tensor:
        """Values that rows are dealt by: their targets."""
        return self.y

    def parted(self, split: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return the numbers of a split's training rows, and its test features and targets."""
        parts = self.split(split)
        return parts.train, (self.x[parts.test], self.y[parts.test])

    def split(self, number: int) -> Split:
        """Return a split by its number, from 0: a prescribed one, or else a drawn tenth to test.

        Raises
        ------
        SettingError
            If there is no split of that number, or none can be drawn.
        """
        if split := prescribed(self.splits, number):
            return split
        return Split.where(self.tested(np.random.default_rng(derive_seed(number, "split"))))

    @abstractmethod
    def tested(self, rng: np.random.Generator) -> np.ndarray:
        """Draw the rows that are for testing: a mask (N,)."""

    @abstractmethod
    def validation(self, targets: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw validation rows of training rows with these targets: a mask."""
