"""A folder with a folder of images for each class, named as the class.

It may hold two of these, ``train`` and ``test`` (or ``validation``, ``valid``, ``val``), in capital
letters too; otherwise a tenth of each class is tested. Hidden files and folders are no data.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedbary.data.folder_contents import named
from fedbary.data.hub import TESTS
from fedbary.data.image_files import Shape
from fedbary.data.image_folder import (
    classes_in,
    described,
    folders_in,
    read_classes,
    require_examples,
    shape_in,
)
from fedbary.data.images._dataset import NOTES
from fedbary.data.images._parts import arrays_of
from fedbary.errors import SettingError

TRAIN = "train"
"""What the part to train on is called, in capital letters too, and `TESTS` likewise."""


def read(folder: Path, shape: Shape | None, resize: str) -> dict[str, Any]:
    """Return the four arrays and the classes' names.

    Raises
    ------
    SettingError
        An image cannot be read, or is not of the shape, or of the others' where none is given; or
        there are no classes, or no test part beside ``train``.
    """
    train, test = folder, None
    parts = {name.casefold(): place for name, place in folders_in(folder).items()}
    if TRAIN in parts:
        train = parts[TRAIN]
        test = next((parts[name] for name in TESTS if name in parts), None)
        if test is None:
            held = ", ".join(classes_in(folder))
            raise SettingError(str(folder), held, f"beside train one of {', '.join(TESTS)}")
    classes = classes_in(train)
    if len(classes) < 2:
        held = ", ".join(classes) or "no folder"
        raise SettingError(str(train), held, "a folder of images for each of 2 classes or more")
    require_examples(train)
    shape = shape or shape_in(train, classes)
    tested = read_classes(test, classes, shape, resize) if test else None
    arrays = arrays_of(classes, read_classes(train, classes, shape, resize), tested)
    said = [f"{part}: {described(part, classes)}" for part in (train, test) if part]
    if left := [place.name for place in parts.values() if test and place not in (train, test)]:
        said.append(f"{folder}: not read: {named(left)}")
    return {**arrays, NOTES: said}
