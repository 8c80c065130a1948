"""Forms of labels: one class for each example, one for each pixel, or any set of classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedbary.errors import SettingError

MARK = 255
"""What pictures of masks hold as ink, or where no class is known."""


@dataclass(frozen=True)
class Labels:
    """Form of a task's labels.

    Parameters
    ----------
    reader : str
        The function by which a data set's file gives such labels.
    read : callable
        From an array, the images (N, C, H, W) that it labels and what errors call it, to int64.
    classes : callable
        Number of classes that labels imply.
    counts : callable
        Number of labels of each class, (classes,).
    strata : callable
        The class (N,) by which each example is dealt to clients, and counted.
    exact : bool
        True if labels show the number of all classes, not only of those that occur.
    """

    reader: str
    read: Callable[[Any, Tensor, str], Tensor]
    classes: Callable[[Tensor], int]
    counts: Callable[[Tensor, int], Tensor]
    strata: Callable[[Tensor], Tensor]
    exact: bool = False

    def fit(self, labels: Tensor, classes: int) -> bool:
        """Return whether labels fit that number of classes."""
        found = self.classes(labels)
        return found == classes if self.exact else found <= classes


def whole_numbers(array: Any, dimensions: int, source: str, allowed: str) -> Tensor:
    """Return an array of so many dimensions, of whole numbers from 0, as int64; else an error."""
    labels = np.asarray(array)
    if labels.ndim != dimensions or labels.dtype.kind not in "iu":
        held = f"{labels.dtype} of {labels.ndim} dimensions"
        raise SettingError(source, held, allowed)
    labels = labels.astype(np.int64)
    if labels.size and labels.min() < 0:
        raise SettingError(source, int(labels.min()), "labels from 0 up")
    return torch.from_numpy(np.ascontiguousarray(labels))


def class_of_each(array: Any, images: Tensor, source: str) -> Tensor:
    """Return labels (N,)."""
    return whole_numbers(array, 1, source, "one dimension of integers")


def masks(array: Any, images: Tensor, source: str) -> Tensor:
    """Return the class of each pixel, (N, H, W)."""
    labels = whole_numbers(_counted(array), 3, source, "N×H×W integers, the class of each pixel")
    if (labels == MARK).any() and not (labels == MARK - 1).any():
        allowed = "classes 0, 1, …: divide masks of 0 and 255 by 255; a mark of no class is a class"
        raise SettingError(source, MARK, f"{allowed} of its own, numbered after the others")
    if labels.shape[1:] != images.shape[2:]:
        held, wanted = ("×".join(map(str, s)) for s in (labels.shape[1:], images.shape[2:]))
        raise SettingError(source, held, f"{wanted}, as the images have")
    return labels


def sets(array: Any, images: Tensor, source: str) -> Tensor:
    """Return which classes an example bears, (N, classes) of 0 and 1."""
    labels = whole_numbers(_counted(array), 2, source, "N×classes of 0 and 1")
    if labels.numel() and labels.max() > 1:
        raise SettingError(source, int(labels.max()), "0 or 1: whether an example bears a class")
    return labels


def _counted(array: Any) -> np.ndarray:
    """Return an array with booleans, and floats that are whole numbers, as integers."""
    found = np.asarray(array)
    whole = found.dtype.kind == "f" and bool((found == np.rint(found)).all())
    return found.astype(np.int64) if whole or found.dtype.kind == "b" else found


def most_seen(labels: Tensor) -> Tensor:
    """Return the class, besides 0, of most pixels of each mask (N, H, W); 0 where there is none."""
    each = torch.stack([(labels == c).sum((1, 2)) for c in range(1, 1 + _highest(labels))])
    return torch.where(each.amax(0) > 0, 1 + each.argmax(0), 0)


def _highest(labels: Tensor) -> int:
    return max(1, int(labels.max())) if labels.numel() else 1


def _highest_and_one(labels: Tensor) -> int:
    return 1 + int(labels.max())


def _bins(labels: Tensor, classes: int) -> Tensor:
    return torch.bincount(labels.flatten(), minlength=classes)


CLASSES = Labels("read", class_of_each, _highest_and_one, _bins, lambda labels: labels)
"""A class an example, (N,)."""

MASKS = Labels("read_masks", masks, _highest_and_one, _bins, most_seen)
"""One class for each pixel, (N, H, W); 0 is the background. Dealt by the largest object."""

SETS = Labels(
    "read_sets",
    sets,
    lambda labels: labels.shape[1],
    lambda labels, classes: labels.sum(0),
    lambda labels: labels.argmax(1),
    exact=True,
)
"""Any of the classes together, (N, classes) of 0 and 1.

Dealt by the first class that an example bears; one that bears none goes with the first.
"""
