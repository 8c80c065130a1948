"""Any image classification set of torchvision: ``torchvision:KMNIST``.

Its parts follow the parameter ``train``, or ``split``: ``train`` and ``test``, or their other names
there. A set with neither has a tenth of each class tested. EMNIST has both, so the split is named
too: ``torchvision:EMNIST:letters``.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from fedbary.data.forms import DataSource
from fedbary.data.image_files import Shape, common_shape, fitted, picture_shape, traits
from fedbary.data.image_folder import counted
from fedbary.data.images._dataset import UNREADABLE
from fedbary.data.readers import NOTES, TESTS, LabelledImages, Reading, arrays_of
from fedbary.errors import SettingError, one_line

FORM = "torchvision:NAME"

TRAINS = ("train", "trainval")
"""Names of the training split; the first that the set knows is taken."""


def images(source: DataSource, reading: Reading) -> dict[str, Any]:
    """Return the four arrays and the classes' names, where torchvision knows them.

    Raises
    ------
    SettingError
        There is no such set, its files are absent and cannot be had, or it is none of images with
        a class each; or an image has another shape.
    """
    name, called, folder = source.text, source.place, str(reading.data_dir)
    makes = _makes(name, called, source.part)
    try:
        train, test = _parts(makes, {"root": folder, "download": reading.download}, source.part)
    except UNREADABLE as error:
        allowed = f"a folder with torchvision's files of {called}, or download=true and a network"
        raise SettingError("data_dir", folder, f"{allowed} ({one_line(error)})") from error
    shape = reading.shape or common_shape(
        (n, picture_shape(p, n)) for n, p, _ in _items(name, train)
    )
    seen: Counter[str] = Counter()
    parts = [part and _read(name, part, shape, reading.resize, seen) for part in (train, test)]
    known = [str(known) for known in getattr(train, "classes", ())]
    numbers = range(1 + int(parts[0][1].max()))
    named = len(set(known)) == len(known) >= len(numbers)
    arrays = arrays_of(known if named else [*map(str, numbers)], *parts)
    return {**arrays, NOTES: [f"dataset {name}: {'; '.join(counted(seen))}"] if seen else []}


def _makes(name: str, called: str, variant: str) -> Any:
    """Return the class of a data set; a SettingError unless there is one that takes a variant."""
    from torchvision import datasets

    found = getattr(datasets, called, None)
    if called not in datasets.__all__ or not isinstance(found, type):
        allowed = "a data set of torchvision, such as torchvision:KMNIST or torchvision:DTD"
        raise SettingError("dataset", name, allowed)
    if bool(variant) != ({"train", "split"} <= _taken(found)):
        allowed = f"torchvision:{called}" if variant else f"{name}:SPLIT, as {called} has several"
        raise SettingError("dataset", name, allowed)
    return found


def _taken(makes: type) -> set[str]:
    """Return the parameters of a class and of those that it inherits from, EMNIST's from MNIST."""
    bases = [base for base in makes.__mro__ if base is not object]
    return {name for base in bases for name in inspect.signature(base.__init__).parameters}  # type: ignore[misc]


def _parts(makes: Any, given: dict[str, Any], variant: str) -> tuple[Any, Any]:
    """Return the training part and the test part; None for a set without one."""
    takes = _taken(makes)
    given = {key: value for key, value in given.items() if key in takes}
    if "train" in takes:
        split = {"split": variant} if variant else {}
        return makes(**given, **split, train=True), makes(**given, **split, train=False)
    if "split" in takes:
        return _split(makes, given, TRAINS), _split(makes, given, TESTS)
    return makes(**given), None


def _split(makes: Any, given: dict[str, Any], names: tuple[str, ...]) -> Any:
    """Return the first split that the data set knows; an unknown one is a ValueError there."""
    *others, last = names
    for name in others:
        try:
            return makes(**given, split=name)
        except ValueError:
            continue
    return makes(**given, split=last)


def _items(name: str, part: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield what each example is called, its picture and its label."""
    from PIL import Image

    for number in range(len(part)):
        called = f"dataset {name}: {number + 1}"
        item = part[number]
        if not isinstance(item, tuple) or len(item) != 2 or not isinstance(item[0], Image.Image):
            raise SettingError(called, type(item).__name__, "a picture with a label")
        yield called, *item


def _read(name: str, part: Any, shape: Shape, resize: str, seen: Counter[str]) -> LabelledImages:
    pixels, labels = [], []
    for called, picture, label in _items(name, part):
        seen.update(traits(picture))
        pixels.append(fitted(picture, shape, resize, called))
        labels.append(label)
    if not all(isinstance(label, int | np.integer) for label in labels):
        raise SettingError(f"dataset {name}: labels", labels[0], "a class for each image")
    return np.stack(pixels), np.array(labels), None
