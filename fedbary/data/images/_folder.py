"""A folder with a folder of images for each class, named as the class.

It may hold two of these, ``train`` and ``test`` (or ``validation``, ``valid``, ``val``); otherwise
a tenth of each class is tested.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedbary.data.hub import TESTS
from fedbary.data.image_files import Shape
from fedbary.data.image_folder import classes_in, read_classes, shape_in
from fedbary.data.images._parts import arrays_of
from fedbary.errors import SettingError


def read(folder: Path, shape: Shape | None, resize: str) -> dict[str, Any]:
    """Return the four arrays and the classes' names.

    Raises
    ------
    SettingError
        An image cannot be read, or is not of the shape, or of the others' where none is given; or
        there are no classes, or no test part beside ``train``.
    """
    train, test = folder, None
    if (folder / "train").is_dir():
        train = folder / "train"
        test = next((folder / name for name in TESTS if (folder / name).is_dir()), None)
        if test is None:
            held = ", ".join(classes_in(folder))
            raise SettingError(str(folder), held, f"beside train one of {', '.join(TESTS)}")
    classes = classes_in(train)
    if len(classes) < 2:
        held = ", ".join(classes) or "no folder"
        raise SettingError(str(train), held, "a folder of images for each of 2 classes or more")
    shape = shape or shape_in(train, classes)
    tested = read_classes(test, classes, shape, resize) if test else None
    return arrays_of(classes, read_classes(train, classes, shape, resize), tested)
