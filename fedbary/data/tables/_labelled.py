"""Rows with a class, coded as numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedbary.data.frame import TARGET, Frame
from fedbary.data.tables._coding import features_of, places_of, without
from fedbary.data.tables._layout import Layout, require, require_plain
from fedbary.data.tables._split import Split, prescribed, tenth_of_each_class
from fedbary.errors import SettingError
from fedbary.seeds import derive_seed


@dataclass(frozen=True, eq=False)
class Labelled:
    """A classification set in its own units.

    Attributes
    ----------
    name : str
        Where it is from.
    layout : Layout
        What the columns of ``x`` and the labels mean.
    x : Tensor
        Features, (N, D), finite float64; D is the number of ``layout.features``.
    y : Tensor
        Labels, (N,), int64 in 0..K-1 for K classes.
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
        """All features and labels."""
        return self.x, self.y

    @property
    def strata(self) -> Tensor:
        """What rows are dealt by: their targets."""
        return self.y

    def parted(self, split: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return the numbers of a split's training rows, and its test features and labels."""
        parts = self.split(split)
        return parts.train, (self.x[parts.test], self.y[parts.test])

    def validation(self, targets: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw a tenth of each class's training rows."""
        return tenth_of_each_class(targets, rng)

    def split(self, number: int) -> Split:
        """Return a split by its number, from 0: a prescribed one, or a tenth of each class to test.

        Raises
        ------
        SettingError
            If there is no split of that number, or none can be drawn.
        """
        if split := prescribed(self.splits, number):
            return split
        rng = np.random.default_rng(derive_seed(number, "split"))
        tested = tenth_of_each_class(self.y.numpy(), rng)
        if not tested.any():
            raise SettingError(self.name, "no class of two rows", "two rows of some class")
        return Split.where(tested)


def encode(frame: Frame, layout: Layout) -> Labelled:
    """Code a frame's rows and classes by a layout; rows with a level unknown to it are left out.

    Raises
    ------
    SettingError
        As of `features_of`; or a class is none of the layout's (names the row).
    """
    x, unknown = features_of(frame, layout)
    labels = labels_of(frame, layout)
    known = without(frame, layout, unknown)
    features, y = (torch.from_numpy(part[~unknown]) for part in (x, labels))
    return Labelled(frame.name, layout, features, y, known.splits, layout.unused(frame.columns))


def labels_of(frame: Frame, layout: Layout) -> np.ndarray:
    """Return the place of each row's class in a layout, (N,) int64.

    Raises
    ------
    SettingError
        A class is missing or none of the layout's.
    """
    assert frame.target is not None
    require_plain(frame.name, TARGET, frame.target)
    labels = places_of(frame.target, layout.classes)
    require(frame.name, TARGET, frame.target, frame.target.missing, "")
    allowed = f"{', '.join(layout.classes)}, which the server knows"
    require(frame.name, TARGET, frame.target, labels < 0, allowed)
    return labels
