"""A folder with a folder of images for each class, named as the class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedbary.data.image_files import IMAGES, Shape, common_shape, read_image, shape_of
from fedbary.errors import SettingError

Labelled = tuple[np.ndarray, np.ndarray]


def classes_in(folder: Path) -> tuple[str, ...]:
    """Return the names of the folders in a folder: numbers by size, others by the alphabet."""
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    return tuple(sorted(names, key=int) if all(map(str.isdecimal, names)) else names)


def shape_in(folder: Path, classes: Sequence[str]) -> Shape:
    """Return the shape of all images of a folder; a SettingError if they differ."""
    return common_shape((str(file), shape_of(file)) for file, _ in _files(folder, classes))


def read_classes(folder: Path, classes: Sequence[str], shape: Shape, resize: str) -> Labelled:
    """Return images, (N, H, W) or (N, H, W, 3) uint8, and labels (N,), in the order of classes.

    Parameters
    ----------
    folder : Path
        Its folders, at any depth, hold images; each is named as one of the classes.
    classes : sequence of str
        The classes; not all need a folder.
    shape, resize
        What the images become, see `fedbary.data.image_files.read_image`.

    Raises
    ------
    SettingError
        If a folder is no class, an image cannot be read, or there is none.
    """
    files = _files(folder, classes)
    images = np.stack([read_image(file, shape, resize) for file, _ in files])
    return images, np.array([label for _, label in files])


def _files(folder: Path, classes: Sequence[str]) -> list[tuple[Path, int]]:
    if unknown := [name for name in classes_in(folder) if name not in classes]:
        raise SettingError(str(folder), unknown[0], f"folders named {', '.join(classes)}")
    files = [
        (file, label)
        for label, name in enumerate(classes)
        for file in sorted((folder / name).glob("**/*"))
        if file.suffix.lower() in IMAGES and file.is_file()
    ]
    if not files:
        allowed = f"a folder of images for each class ({', '.join(classes)})"
        raise SettingError(str(folder), "no image", allowed)
    return files
