"""The data set of images, and the checks that turn four arrays into one."""

from __future__ import annotations

import functools
import operator
import warnings
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from fedbary.data.batches import Augment, scale_pixels
from fedbary.data.deal import tenth_of_all
from fedbary.data.formats.npz import KINDS, NAMES, PARTS, read_npz_arrays
from fedbary.data.grouping import group_numbers, require_apart
from fedbary.data.image_folder import named
from fedbary.data.image_layout import MIN_SIDE
from fedbary.data.readers import GROUPS, NOTES, parted
from fedbary.data.standardise import Standardiser, Sums
from fedbary.errors import SettingError
from fedbary.texts import alike, composed

MAX_FLOAT = 10
"""Largest absolute value of a float pixel. Floats from 0 to 255 are refused, not scaled."""

DARK = 0.5
"""Images whose largest pixel is below this fraction of white are reported as dark."""

SMALL = 16
"""Bytes up to this are counts or ink, not pixels: divided by 255 all would be black."""

UNREADABLE = (
    OSError,
    RuntimeError,
    ValueError,
    AssertionError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
)
"""Errors of readers for files that are absent, damaged or of another kind."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images and their labels, held as contiguous tensors.

    Attributes
    ----------
    name : str
        The name it was loaded by.
    x_train, x_test : Tensor
        Images, (N, C, H, W): uint8 in 0..255, or float32 as given. `inputs` makes a batch of
        either into what a network takes. Or features, (N, D), float32.
    y_train, y_test : Tensor
        Labels, int64: (N,) in 0..num_classes-1.
    classes : tuple of str
        Name of each class; numbers from 0 where the data have no names.
    augment : Augment
        Random changes of training batches, see `batch_source`.
    notes : tuple of str
        Lines on files that were read, on others that were not, and on oddities.
    groups, groups_test : Tensor or None
        The group of each image, (N,) int64, see `fedbary.data.grouping`; None: each stands alone.
    """

    name: str
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: tuple[str, ...]
    augment: Augment = False
    notes: tuple[str, ...] = ()
    groups: Tensor | None = None
    groups_test: Tensor | None = None

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.classes)

    @property
    def examples(self) -> tuple[Tensor, Tensor]:
        """The training images and labels."""
        return self.x_train, self.y_train

    @property
    def strata(self) -> Tensor:
        """The classes by which the training images are dealt, (N,)."""
        return self.y_train

    def parted(self, split: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return the numbers of all training examples, and the test set: it has one split."""
        return torch.arange(len(self.y_train)), (self.x_test, self.y_test)

    def tested_groups(self, split: int) -> Tensor | None:
        """Return the group of each test image; None where each stands alone."""
        return self.groups_test

    def validation(self, targets: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw a tenth of the training examples."""
        return tenth_of_all(targets, rng)

    @property
    def shape(self) -> tuple[int, ...]:
        """Channels, height and width of an image, or the number of features."""
        return tuple(self.x_train.shape[1:])


def from_arrays(
    name: str, arrays: Mapping[str, Any], source: str, augment: Augment = False
) -> Dataset:
    """Return the data set that four arrays describe.

    Parameters
    ----------
    name : str
        The name of the data set.
    arrays : Mapping
        ``x_train`` and ``x_test``: N×H×W (one channel), N×H×W×C or N×C×H×W, uint8 or floats. C is 1
        or 3; H and W are at least 5. So an axis of length 1 or 3 is the channels; the last axis is
        tried first. Floats lie in [0, 1], or are standardised, up to ±10. Or N×D, features of each
        example, any finite floats. ``y_train`` and ``y_test``: N integers from 0. ``classes``, if
        it is there: the name of each class, by default its number, up to the largest training
        label.
    source : str
        Source of the arrays, for errors.
    augment : Augment
        Random changes of training batches.

    Raises
    ------
    SettingError
        An array is missing, has another shape, type or length, or holds a value not allowed.
    """
    missing = [array for array in PARTS if array not in arrays]
    if missing:
        raise SettingError(source, f"no {', '.join(missing)}", f"the arrays {', '.join(PARTS)}")
    if _is_hidden(arrays["y_test"], arrays["y_train"]):
        warnings.warn(f"{source}: y_test has no labels; a part of y_train is tested", stacklevel=2)
        known = np.asarray(arrays["x_train"]), np.asarray(arrays["y_train"])
        groups = groups_of(arrays, GROUPS[0], len(known[1]), source)
        arrays = {**arrays, **parted(*known, groups)}
    x_train, y_train = tensors(arrays, ("x_train", "y_train"), source)
    x_test, y_test = tensors(arrays, ("x_test", "y_test"), source)
    if (x_train.shape[1:], x_train.dtype) != (x_test.shape[1:], x_test.dtype):
        held = f"{_describe(x_train)} and {_describe(x_test)}"
        raise SettingError(f"{source}: x_train and x_test", held, "inputs of one shape and type")
    names = arrays.get(NAMES, range(1 + int(y_train.max())))
    classes = tuple(composed(str(name)).strip() for name in names)
    num_classes = len(classes)
    if len(set(classes)) < num_classes or y_train.max() >= num_classes:
        held = f"{num_classes} names for labels up to {int(y_train.max())}"
        raise SettingError(f"{source}: {NAMES}", held, "another name for each label")
    if len(y_test) and y_test.max() >= num_classes:
        allowed = f"labels of the training set, 0 to {num_classes - 1}"
        raise SettingError(f"{source}: y_test", int(y_test.max()), allowed)
    if not 2 <= num_classes <= max(2, len(y_train)):
        allowed = "at least 2 classes, and no more than there are training examples"
        raise SettingError(f"{source}: labels", f"0 to {num_classes - 1}", allowed)
    counts = torch.bincount(y_train, minlength=num_classes).tolist()
    if NAMES not in arrays and not counts[0]:
        warnings.warn(f"{source}: no training label is 0, but labels count from 0", stacklevel=2)
    notes = tuple(arrays.get(NOTES, ()))
    if empty := [label for label, count in zip(classes, counts, strict=True) if not count]:
        notes += (f"{source}: classes without a training example: {named(empty)}",)
    for one, other in alike(classes):
        said = f"{one!r} and {other!r} differ in case or blanks alone, and are told apart"
        notes += (f"{source}: {said}",)
    top = float(x_train.max()) / (255 if x_train.dtype == torch.uint8 else 1)
    if top < DARK and x_train.min() >= 0 and x_train.ndim > 2:
        notes += (f"{source}: the largest pixel is {top:.2g} of 1: all images are dark",)
    groups, tested = (
        groups_of(arrays, name, len(y), source)
        for name, y in zip(GROUPS, (y_train, y_test), strict=True)
    )
    if groups is not None and tested is not None:
        require_apart(source, groups, tested)
        said = f"{len(groups.unique())} groups to train on, {len(tested.unique())} to test on"
        notes += (f"{source}: {said}",)
    parts = x_train, y_train, x_test, y_test
    return Dataset(name, *parts, classes, augment, notes, groups, tested)


def groups_of(arrays: Mapping[str, Any], name: str, count: int, source: str) -> Tensor | None:
    """Return the groups of so many examples that an array of names, or of numbers, has.

    Raises
    ------
    SettingError
        If the array is no name for each example.
    """
    if (names := arrays.get(name)) is None or isinstance(names, Tensor):
        return names
    if (held := np.asarray(names)).shape != (count,) or held.dtype.kind not in KINDS:
        allowed = "a name or a number for the group of each example"
        raise SettingError(f"{source}: {name}", f"{held.shape} {held.dtype}", allowed)
    return group_numbers(held.tolist())


def _is_hidden(tested: Any, known: Any) -> bool:
    """Return whether all test labels are −1, and so hidden."""
    return bool(np.size(tested) and (np.asarray(tested) == -1).all() and np.ndim(known) == 1)


def read_own_npz(path: Path, group: str = "") -> tuple[Tensor, Tensor, Tensor | None]:
    """Return a site's own images (N, C, H, W), labels and groups from an ``.npz`` file.

    They are its arrays ``x`` and ``y`` or else ``x_train`` and ``y_train``, as `from_arrays` has
    them. A third array names the groups, by `group` or that with ``_train``.

    Raises
    ------
    SettingError
        The file is unreadable, or holds what it must not.
    """
    known = ("x", "y", group), ("x_train", "y_train", f"{group}_train")
    arrays = read_npz_arrays(path, [*known[0], *known[1]])
    for x, y, name in known:
        if {x, y} <= arrays.keys():
            images, labels = tensors(arrays, (x, y), str(path))
            if group and name not in arrays:
                raise SettingError("group", "no such array", "the array of groups that is named")
            groups = groups_of(arrays, name, len(labels), str(path)) if group else None
            return images, labels, groups
    raise SettingError(str(path), ", ".join(arrays) or "no array", "x and y, or x_train, y_train")


def tensors(
    arrays: Mapping[str, Any], names: tuple[str, str], source: str
) -> tuple[Tensor, Tensor]:
    """Return images (N, C, H, W) and labels: the arrays of two names, checked.

    Raises
    ------
    SettingError
        As `from_arrays` says.
    """
    x, y = names
    images = images_of(arrays[x], f"{source}: {x}")
    labels = labels_of(arrays[y], f"{source}: {y}")
    require_pixels(images, f"{source}: {x}")
    if len(images) != len(labels):
        held = f"{len(images)} inputs and {len(labels)} labels"
        raise SettingError(f"{source}: {x} and {y}", held, "a label for every input")
    return images, labels


def images_of(array: Any, source: str) -> Tensor:
    """Return images (N, C, H, W) of an array laid out as `from_arrays` says; else an error.

    Floats N×D are features, which have no range.
    """
    images = np.asarray(array)
    if images.dtype != np.uint8:
        if images.dtype.kind != "f":
            raise SettingError(source, str(images.dtype), "uint8 or a float type")
        with np.errstate(over="ignore"):
            images = images.astype(np.float32, copy=False)
        if not np.isfinite(images).all():
            raise SettingError(source, "a value that is not finite", "finite float32 values")
        if images.ndim == 2 and images.size:
            return torch.from_numpy(np.ascontiguousarray(images))
        if images.size and (largest := float(np.abs(images).max())) > MAX_FLOAT:
            allowed = f"floats from 0 to 1, or standardised, up to ±{MAX_FLOAT}; 0 to 255 as uint8"
            raise SettingError(source, f"values up to {largest:g}", allowed)
    shape = images.shape
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and shape[-1] in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    sides = images.shape[2:]
    right = images.ndim == 4 and images.shape[1] in (1, 3) and len(images) > 0
    if not right or min(sides) < MIN_SIDE:
        allowed = "N×H×W, N×H×W×C or N×C×H×W with N at least 1, C 1 or 3, "
        allowed += f"H and W at least {MIN_SIDE}; or features N×D as floats"
        raise SettingError(source, "×".join(map(str, shape)), allowed)
    return torch.from_numpy(np.ascontiguousarray(images))


def labels_of(array: Any, source: str) -> Tensor:
    """Return the class of each image, (N,) int64, of an array of whole numbers from 0."""
    labels = np.asarray(array)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        held = f"{labels.dtype} of {labels.ndim} dimensions"
        raise SettingError(source, held, "one dimension of integers")
    labels = labels.astype(np.int64)
    if labels.size and labels.min() < 0:
        raise SettingError(source, int(labels.min()), "labels from 0 up")
    return torch.from_numpy(np.ascontiguousarray(labels))


def require_pixels(images: Tensor, source: str) -> None:
    """Raise a SettingError for bytes that are small numbers; the message holds none of them."""
    if images.dtype == torch.uint8 and 0 < images.max() <= SMALL:
        allowed = "bytes from 0 to 255, or floats from 0 to 1, such as x / x.max()"
        raise SettingError(source, f"bytes of at most {SMALL}", allowed)


def _describe(images: Tensor) -> str:
    return f"{'×'.join(map(str, images.shape[1:]))} {images.dtype}".replace("torch.", "")


AT_ONCE = 1000
"""Images whose pixels are summed at a time, so that few are float64."""


@dataclass(frozen=True)
class Normaliser:
    """Takes each channel to mean 0 and variance 1 over the pixels of all training images.

    Attributes
    ----------
    mean, std : tuple of float
        Mean and standard deviation of each channel's pixels in [0, 1]. The std of a channel without
        spread is infinite: it is 0 for every image.
    projection : tuple of float
        Projection of C standardised features on K components, (C, K) in one row; empty: none.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    projection: tuple[float, ...] = ()

    @classmethod
    def from_sums(cls, sums: Sums) -> Self:
        """Return the one of channels with those sums over pixels."""
        scale = Standardiser.from_sums(sums)
        return cls(tuple(scale.mean.tolist()), tuple(scale.std.tolist()))

    @classmethod
    def from_facts(cls, facts: Mapping[str, Tensor]) -> Self:
        """Return the one that `facts` describes."""
        return cls(**{name: tuple(held.tolist()) for name, held in facts.items()})

    def facts(self) -> dict[str, Tensor]:
        """Return `mean` and `std`, (C,), and `projection`, if there is one, float64 each."""
        held = {name: values for name, values in vars(self).items() if values}
        return {name: torch.tensor(values, dtype=torch.float64) for name, values in held.items()}

    def __call__(self, x: Tensor) -> Tensor:
        """Return (x − mean)/std of images (N, C, H, W), uint8 of [0, 255] or floats, in float32.

        Features (N, C) are standardised by column, and projected.
        """
        mean, std = (
            x.new_tensor(held, dtype=torch.float32).view(-1, *[1] * (x.ndim - 2))
            for held in (self.mean, self.std)
        )
        found = (scale_pixels(x) - mean).div_(std)
        if not self.projection:
            return found
        return found @ x.new_tensor(self.projection).view(len(self.mean), -1)


def pixel_sums(x: Tensor, shift: Tensor) -> Sums:
    """Return the sums over the pixels of images (N, C, H, W) of each channel less a shift (C,).

    For features (N, C) they are the sums of each column.
    """
    parts = (scale_pixels(part).movedim(1, -1).reshape(-1, x.shape[1]) for part in x.split(AT_ONCE))
    return functools.reduce(operator.add, (Sums.of(part.cpu(), shift) for part in parts))
