"""A folder with a folder of images for each class, named as the class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from fedbary.data.folder_contents import Contents, contents, formats, is_hidden, named
from fedbary.data.image_files import Shape, common_shape, read_image, shape_of, traits_of
from fedbary.data.readers import LabelledImages
from fedbary.errors import SettingError
from fedbary.texts import SURROGATE, composed, shown

Read = TypeVar("Read")


def folders_in(folder: Path) -> dict[str, Path]:
    """Return the folders in a folder by their names, hidden ones left out.

    Numbers stand by size, others by the alphabet; names are in Unicode's composed form.

    Raises
    ------
    SettingError
        If two have one name but for that form, or a name is not in UTF-8.
    """
    found: dict[str, Path] = {}
    for entry in sorted(folder.iterdir()):
        if entry.is_dir() and not is_hidden(entry.name):
            if SURROGATE.search(entry.name):
                raise SettingError(str(folder), shown(entry.name), "names of folders in UTF-8")
            if (name := composed(entry.name).strip()) in found:
                raise SettingError(str(folder), f"two folders {name}", "one folder for each class")
            found[name] = entry
    numbered = all(map(str.isdecimal, found))
    return {name: found[name] for name in sorted(found, key=int if numbered else None)}


def classes_in(folder: Path) -> tuple[str, ...]:
    """Return the names of the folders in a folder: numbers by size, others by the alphabet."""
    return tuple(folders_in(folder))


def shape_in(folder: Path, classes: Sequence[str]) -> Shape:
    """Return the shape of all images of a folder; a SettingError if they differ."""
    files = [file for file, _ in _files(folder, classes)]
    return common_shape(zip(map(str, files), _each(files, shape_of), strict=True))


def read_classes(folder: Path, classes: Sequence[str], shape: Shape, resize: str) -> LabelledImages:
    """Return images, (N, H, W) or (N, H, W, 3) uint8, and labels (N,), in the order of classes.

    Parameters
    ----------
    folder : Path
        Its folders, at any depth, hold images; each is named as one of the classes.
    classes : sequence of str
        The classes; not all need a folder.
    shape, resize
        Shape and resizing of the images, see `fedbary.data.image_files.read_image`.

    Raises
    ------
    SettingError
        If a folder is no class, an image cannot be read, or there is none.
    """
    files = _files(folder, classes)
    images = _each([file for file, _ in files], lambda file: read_image(file, shape, resize))
    return np.stack(images), np.array([label for _, label in files])


def described(folder: Path, classes: Sequence[str]) -> str:
    """Return a line: the images by format, what was not read, empty classes, how images are seen.

    Such as ``120 PNG in 3 classes; 70 .heic not read; empty: two; hidden: .ipynb_checkpoints``.
    """
    inside = {name: contents(place) for name, place in folders_in(folder).items()}
    empty = [name for name in classes if name not in inside or not inside[name].pictures]
    read = [file for held in inside.values() for file in held.pictures]
    others = [file for held in inside.values() for file in held.others]
    hidden = [name for held in inside.values() for name in held.hidden]
    for entry in sorted(folder.iterdir()):
        if is_hidden(entry.name):
            hidden.append(entry.name)
        elif entry.is_file():
            others.append(entry)
    full = len(classes) - len(empty)
    parts = [f"{formats(read)} in {full} class{'es' if full != 1 else ''}"]
    parts += [*Contents((), tuple(others), ()).unread()]
    parts += [f"empty: {named(empty)}"] if empty else []
    parts += Contents((), (), tuple(hidden)).unread()
    return "; ".join([*parts, *treated(read)])


def treated(files: Iterable[Path]) -> list[str]:
    """Return what was done to images before they were seen, each with how many there were."""
    return counted(Counter(trait for file in files for trait in traits_of(file)))


def counted(traits: Counter[str]) -> list[str]:
    """Return how many images have each trait, for a line."""
    return [f"{count} {trait}" for trait, count in sorted(traits.items())]


def require_examples(folder: Path) -> None:
    """Raise a SettingError for a class's folder without an image; it says what is there."""
    for name, place in folders_in(folder).items():
        held = contents(place)
        if not held.pictures:
            there = "; ".join(["no image", *held.unread()])
            allowed = "at least one image in the folder of each class, or no such folder"
            raise SettingError(f"{folder}: {name}", there, allowed)


def _each(files: Sequence[Path], read: Callable[[Path], Read]) -> list[Read]:
    """Read every file. A SettingError for the first that is refused also names the others."""
    values, refused = [], []
    for file in files:
        try:
            values.append(read(file))
        except SettingError as error:
            refused.append((file, error))
    if not refused:
        return values
    (_, first), *others = refused
    too = f"; refused too: {named(file.name for file, _ in others)}" if others else ""
    raise SettingError(first.setting, f"{first.value}{too}", first.allowed) from first


def _files(folder: Path, classes: Sequence[str]) -> list[tuple[Path, int]]:
    folders, classes = folders_in(folder), list(map(composed, classes))
    if unknown := [name for name in folders if name not in classes]:
        raise SettingError(str(folder), unknown[0], f"folders named {', '.join(classes)}")
    files = [
        (file, label)
        for label, name in enumerate(classes)
        if name in folders
        for file in contents(folders[name]).pictures
    ]
    if not files:
        allowed = f"a folder of images for each class ({', '.join(classes)})"
        raise SettingError(str(folder), "no image", allowed)
    return files
