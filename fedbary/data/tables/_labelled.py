"""Rows with a class, coded as numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch

from fedbary.data.frame import TARGET, Frame
from fedbary.data.split import Split, tenth_of_each_class
from fedbary.data.tables._coded import Coded
from fedbary.data.tables._coding import features_of, places_of, without
from fedbary.data.tables._layout import Layout, require, require_plain
from fedbary.errors import SettingError


@dataclass(frozen=True, eq=False)
class Labelled(Coded):
    """A classification set in its own units; labels are int64 in 0..K-1 for K classes."""

    def tested(self, rng: np.random.Generator) -> np.ndarray:
        """Draw a tenth of each class."""
        tested = tenth_of_each_class(self.y.numpy(), rng)
        if not tested.any():
            raise SettingError(self.name, "no class of two rows", "a class with two rows")
        return tested

    def validation(self, targets: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw a tenth of each class's training rows."""
        return tenth_of_each_class(targets, rng)


@lru_cache(maxsize=4)
def with_test(held: Labelled, test: Labelled) -> Labelled:
    """Return rows of which those of another set, coded alike, are tested."""
    train = torch.arange(len(held.y))
    split = Split(train, len(train) + torch.arange(len(test.y)))
    x, y = torch.cat([held.x, test.x]), torch.cat([held.y, test.y])
    return replace(held, x=x, y=y, splits=(split,))


def encode(frame: Frame, layout: Layout) -> Labelled:
    """Code a frame's rows and classes by a layout; rows with a level unknown to it are left out.

    Raises
    ------
    SettingError
        As in `features_of`; or a class is none of the layout's (names the row).
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
