"""Images in a column, of a Hugging Face data set or a Parquet file, beside one of classes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedbary.data.image_files import Shape, common_shape, read_image, shape_of
from fedbary.data.readers import LabelledImages, Reading, arrays_of
from fedbary.errors import SettingError

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
    columns, shape, resize = _columns(name, train, reading.target), reading.shape, reading.resize
    if shape is None:
        held = _held(name, train, columns.images)
        shape = common_shape((row, shape_of(image, row)) for row, image in held)
    tested = None if test is None else _read(name, test, columns, shape, resize)
    return arrays_of(columns.classes, _read(name, train, columns, shape, resize), tested)


@dataclass(frozen=True)
class _Columns:
    """The columns of images and labels, and each class's value among the labels and its name."""

    images: str
    labels: str
    values: tuple[Any, ...]
    classes: tuple[str, ...]


def _columns(name: str, train: Any, target: str) -> _Columns:
    kinds = {column: _kind(feature) for column, feature in train.features.items()}
    images = [column for column, kind in kinds.items() if kind == "Image"]
    others = [column for column in kinds if column not in images]
    if target not in (UNNAMED, *others):
        raise SettingError("target", target, f"a column of {name}: {', '.join(others)}")
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
        return _Columns(images[0], labels[0], tuple(range(len(classes))), tuple(classes))
    found = set(train[labels[0]])
    if not all(isinstance(label, int | str) for label in found):
        allowed = "a class for each image, a whole number or a text"
        raise SettingError(f"dataset {name}: {labels[0]}", str(feature), allowed)
    values = tuple(sorted(found))
    return _Columns(images[0], labels[0], values, tuple(map(str, values)))


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


def _read(name: str, part: Any, columns: _Columns, shape: Shape, resize: str) -> LabelledImages:
    held = _held(name, part, columns.images)
    pixels = np.stack([read_image(image, shape, resize, row) for row, image in held])
    places = {value: place for place, value in enumerate(columns.values)}
    labels = part[columns.labels]
    for row, label in enumerate(labels, 1):
        if label not in places:
            where = f"dataset {name}: row {row}, {columns.labels}"
            raise SettingError(where, label, f"one of {', '.join(map(str, columns.values))}")
    return pixels, np.array([places[label] for label in labels])
