"""A folder: of images with a folder for each class, or of a table in the format of the UCI sets.

A folder of images may hold two of these, ``train`` and ``test`` (or ``validation``, ``valid``,
``val``), in capital letters too; otherwise a tenth of each class is tested. Hidden files and
folders are no data.
"""

from __future__ import annotations

from typing import Any

from fedbary.data.folder_contents import named
from fedbary.data.formats._uci import table
from fedbary.data.forms import DataSource
from fedbary.data.image_folder import (
    classes_in,
    described,
    folders_in,
    read_classes,
    require_examples,
    shape_in,
)
from fedbary.data.readers import NOTES, TESTS, Reading, arrays_of
from fedbary.errors import SettingError

__all__ = ["images", "table"]

TRAINS = ("train", "training")
"""Names of the training part, in capital letters too; `TESTS` has those of the test part."""


def images(source: DataSource, reading: Reading) -> dict[str, Any]:
    """Return the four arrays and the classes' names.

    Raises
    ------
    SettingError
        An image cannot be read, or is not of the shape, or of the others' where none is given; or
        there are no classes, or no test part beside ``train``.
    """
    folder, resize = source.path(reading.data_dir), reading.resize
    train, test = folder, None
    parts = {name.casefold(): place for name, place in folders_in(folder).items()}
    known = next((parts[name] for name in TRAINS if name in parts), None)
    if known or (parts and parts.keys() <= {*TESTS}):
        test = next((parts[name] for name in TESTS if name in parts), None)
        train = known or folder
        if known is None or test is None:
            held = ", ".join(classes_in(folder))
            raise SettingError(str(folder), held, f"beside train one of {', '.join(TESTS)}")
    classes = classes_in(train)
    if len(classes) < 2:
        held = ", ".join(classes) or "no folder"
        raise SettingError(str(train), held, "a folder of images for each of 2 classes or more")
    require_examples(train)
    shape = reading.shape or shape_in(train, classes)
    tested = read_classes(test, classes, shape, resize) if test else None
    arrays = arrays_of(classes, read_classes(train, classes, shape, resize), tested)
    said = [f"{part}: {described(part, classes)}" for part in (train, test) if part]
    if left := [place.name for place in parts.values() if test and place not in (train, test)]:
        said.append(f"{folder}: not read: {named(left)}")
    return {**arrays, NOTES: said}
