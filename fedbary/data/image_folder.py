"""Images in a folder with a folder for each class, or in a column of a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from fedbary.data.grouping import group_numbers
from fedbary.data.image_files import IMAGES, Shape, common_shape, read_image, shape_of, traits_of
from fedbary.data.readers import LabelledImages, Reading, arrays_of
from fedbary.errors import CellError, SettingError
from fedbary.texts import SURROGATE, composed, listed, shown

SYSTEM = {"__macosx", "thumbs.db", "ehthumbs.db", "desktop.ini", "@eadir", "$recycle.bin"}
"""Files and folders that systems leave among a user's, in small letters."""

MOST_NAMED = 5
"""Number of names of one kind that a line shows."""


@dataclass(frozen=True)
class Contents:
    """The files of a folder, at any depth.

    Attributes
    ----------
    pictures : tuple of Path
        Those whose endings are formats of pictures, in the order of their paths.
    others : tuple of Path
        Those that are not read.
    hidden : tuple of str
        Names of hidden files and folders, whose content is not looked at.
    """

    pictures: tuple[Path, ...]
    others: tuple[Path, ...]
    hidden: tuple[str, ...]

    def unread(self) -> list[str]:
        """Describe what is not read, in a line: the number of files by ending, and hidden names."""
        endings = Counter(file.suffix.lower() or "without an ending" for file in self.others)
        parts = [f"{named([f'{n} {e}' for e, n in endings.items()])} not read"] if endings else []
        return [*parts, *([f"hidden: {named(sorted(set(self.hidden)))}"] if self.hidden else [])]


def contents(folder: Path) -> Contents:
    """Return a folder's contents; links to folders and special files are skipped.

    Raises
    ------
    SettingError
        If a folder in it may not be read.
    """
    found: tuple[list[Path], list[Path]] = [], []
    hidden = []
    try:
        paths = sorted(folder.iterdir())
    except OSError as error:
        raise SettingError(str(folder), error, "a folder that can be read") from None
    for path in paths:
        if is_hidden(path.name):
            hidden.append(path.name)
        elif path.is_dir() and not path.is_symlink():
            inner = contents(path)
            found[0].extend(inner.pictures)
            found[1].extend(inner.others)
            hidden.extend(inner.hidden)
        elif path.is_file():
            found[path.suffix.lower() not in IMAGES].append(path)
    return Contents(tuple(sorted(found[0])), tuple(sorted(found[1])), tuple(hidden))


def is_hidden(name: str) -> bool:
    """Return whether a name belongs to the system or a program, and so is no data."""
    return name.startswith(".") or name.casefold() in SYSTEM


def formats(pictures: Iterable[Path]) -> str:
    """Return how many pictures of each format there are, such as "120 PNG, 4 JPEG"."""
    counts = Counter(IMAGES[file.suffix.lower()] for file in pictures)
    return ", ".join(f"{count} {kind}" for kind, count in counts.most_common()) or "no picture"


def named(names: Iterable[str]) -> str:
    """Return names for a line, the first of many."""
    first, *others = map(shown, names)
    listed = ", ".join([first, *others[: MOST_NAMED - 1]])
    left = len(others) + 1 - MOST_NAMED
    return f"{listed} and {left} more" if left > 0 else listed


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
    files = [file for file, _, _ in _files(folder, classes)]
    return common_shape(zip(map(str, files), _each(files, shape_of), strict=True))


FOLDER = "folder"
"""The value of `group` for the folder of images right below that of their class."""


def read_classes(
    folder: Path, classes: Sequence[str], shape: Shape, resize: str, group: str = ""
) -> LabelledImages:
    """Return images, (N, H, W) or (N, H, W, 3) uint8, and labels (N,), in the order of classes.

    Parameters
    ----------
    folder : Path
        Its folders, at any depth, hold images; each is named as one of the classes.
    classes : sequence of str
        The classes; not all need a folder.
    shape, resize
        Shape and resizing of the images, see `fedbary.data.image_files.read_image`.
    group : str
        `FOLDER`: images have groups, by the name of the folder below their class; "": none have.

    Raises
    ------
    SettingError
        If a folder is no class, an image cannot be read, lies in no folder of a group, or there is
        none.
    """
    files = _files(folder, classes)
    if group not in ("", FOLDER):
        raise SettingError("group", group, f"none, or {FOLDER}: the folder below an image's class")
    names = [inside.parts[0] for _, _, inside in files if len(inside.parts) > 1]
    if group and len(names) < len(files):
        held = f"{len(files) - len(names)} of {len(files)} images right in the folder of a class"
        raise SettingError("group", held, "a folder below it for each group")
    images = _each([file for file, _, _ in files], lambda file: read_image(file, shape, resize))
    groups = group_numbers(map(composed, names)) if group else None
    return np.stack(images), np.array([label for _, label, _ in files]), groups


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


def _files(folder: Path, classes: Sequence[str]) -> list[tuple[Path, int, Path]]:
    """Return each image, its label, and its path below the folder of its class."""
    folders, classes = folders_in(folder), list(map(composed, classes))
    if unknown := [name for name in folders if name not in classes]:
        raise SettingError(str(folder), unknown[0], f"folders named {', '.join(classes)}")
    files = [
        (file, label, file.relative_to(folders[name]))
        for label, name in enumerate(classes)
        if name in folders
        for file in contents(folders[name]).pictures
    ]
    if not files:
        allowed = f"a folder of images for each class ({', '.join(classes)})"
        raise SettingError(str(folder), "no image", allowed)
    return files


LABELS = ("label", "labels")
"""Names of the class column if several columns hold classes, or none is typed so."""

UNNAMED = "y"
"""The setting `target` where nobody has named a column."""


def arrays_of_columns(name: str, parts: tuple[Any, Any | None], reading: Reading) -> dict[str, Any]:
    """Return the four arrays and the classes' names of parts that train and test.

    The images are the only column of the type Image, or of files' ``bytes`` and ``path``. The
    classes are the column that the reading names. By default they are the only column of the type
    ClassLabel, or else ``label`` or ``labels``.

    Raises
    ------
    SettingError
        There are no such columns, or an image cannot be read or has another shape.
    """
    train, test = parts
    columns, shape = _columns(name, train, reading.target), reading.shape
    if shape is None:
        held = _held(name, train, columns.images)
        shape = common_shape((row, shape_of(image, row)) for row, image in held)
    how = columns, shape, reading
    tested = None if test is None else _read(name, test, *how)
    return arrays_of(columns.classes, _read(name, train, *how), tested)


def own_columns(name: str, part: Any, reading: Reading, classes: Sequence[str]) -> LabelledImages:
    """Return the images and labels of all rows of a part, by the names of given classes.

    A label that has no name is the class of that number or text. The reading names the shape.

    Raises
    ------
    SettingError
        As in `arrays_of_columns`; or a label is no class.
    """
    assert reading.shape is not None
    columns = replace(_columns(name, part, reading.target), classes=tuple(classes))
    return _read(name, part, columns, reading.shape, reading)


@dataclass(frozen=True)
class _Columns:
    """The columns of images and labels, and the classes' names in their order."""

    images: str
    labels: str
    classes: tuple[str, ...]


def _columns(name: str, train: Any, target: str) -> _Columns:
    kinds = {column: _kind(feature) for column, feature in train.features.items()}
    images = [column for column, kind in kinds.items() if kind == "Image"]
    others = [column for column in kinds if column not in images]
    if target not in (UNNAMED, *others):
        allowed = f"a column of {name}: {', '.join(others)}"
        raise CellError("target", target, allowed, "images without the column of the target")
    labels = [column for column in others if column == target]
    labels = labels or [column for column in others if kinds[column] == "ClassLabel"]
    if len(labels) != 1:
        labels = [column for column in LABELS if column in others]
    if len(images) != 1 or len(labels) != 1:
        held = ", ".join(f"{column} ({kind})" for column, kind in kinds.items())
        allowed = "one column of type Image, and one that target= names, of type ClassLabel or "
        raise SettingError(
            f"dataset {name}: columns", held, f"{allowed}called label; a table needs task=tables"
        )
    feature = train.features[labels[0]]
    if classes := getattr(feature, "names", ()):
        return _Columns(images[0], labels[0], tuple(classes))
    found = set(train[labels[0]])
    if not all(isinstance(label, int | str) for label in found):
        allowed = "a class for each image, a whole number or a text"
        raise SettingError(f"dataset {name}: {labels[0]}", str(feature), allowed)
    return _Columns(images[0], labels[0], tuple(map(str, sorted(found))))


def _kind(feature: Any) -> str:
    """Return the type of a column; files without a type in the file's metadata are images."""
    is_file = isinstance(feature, dict) and feature.keys() == {"bytes", "path"}
    return "Image" if is_file else type(feature).__name__


def _held(name: str, part: Any, images: str) -> Iterator[tuple[str, Path | bytes]]:
    """Yield each row's name and its image, not decoded."""
    from datasets import Image

    undecoded = part.select_columns(images).cast_column(images, Image(decode=False))
    for row, cell in enumerate(undecoded, 1):
        held = cell[images] or {"bytes": b"", "path": ""}
        yield f"dataset {name}: row {row}", held["bytes"] or Path(held["path"])


def _read(
    name: str, part: Any, columns: _Columns, shape: Shape, reading: Reading
) -> LabelledImages:
    held = _held(name, part, columns.images)
    pixels = np.stack([read_image(image, shape, reading.resize, row) for row, image in held])
    feature, labels = part.features[columns.labels], part[columns.labels]
    if names := getattr(feature, "names", ()):  # each part numbers its classes by itself
        labels = [names[k] if k is not None and 0 <= k < len(names) else k for k in labels]
    places = {_plain(label): place for place, label in enumerate(columns.classes)}
    for row, label in enumerate(labels, 1):
        if _plain(label) not in places or (names and not isinstance(label, str)):
            where = f"dataset {name}: row {row}, {columns.labels}"
            raise SettingError(where, label, f"one of {listed(columns.classes)}")
    groups = _groups(name, part, reading.group, columns.images) if reading.group else None
    return pixels, np.array([places[_plain(label)] for label in labels]), groups


def _groups(name: str, part: Any, group: str, images: str) -> Tensor:
    """Return the groups that a column names."""
    if group not in part.features or group == images:
        known = [column for column in part.features if column != images]
        allowed = f"a column of {name}: {listed(known)}"
        raise CellError("group", group, allowed, "images without the column of groups")
    cells, names = list(part[group]), getattr(part.features[group], "names", ())
    if None in cells:
        row = f"dataset {name}: row {cells.index(None) + 1}, {group}"
        raise SettingError(row, "", "a name for each image's group")
    return group_numbers(names[cell] if names else cell for cell in cells)


def _plain(label: object) -> str | None:
    """Return the name of a class, by which classes are told apart; None for a label that hides."""
    return None if label is None else composed(str(label)).strip()
