"""A folder: of images with a folder for each class, or of a table in the format of the UCI sets.

A folder of images may hold two of these, ``train`` and ``test`` (or ``validation``, ``valid``,
``val``), in capital letters too; otherwise a tenth of each class is tested. Hidden files and
folders are no data.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbary.data.formats.csv import read_text
from fedbary.data.forms import DataSource
from fedbary.data.frame import Frame, frame
from fedbary.data.image_folder import (
    classes_in,
    described,
    folders_in,
    named,
    read_classes,
    require_examples,
    shape_in,
)
from fedbary.data.readers import NOTES, TESTS, Reading, arrays_of
from fedbary.errors import SettingError

if TYPE_CHECKING:
    from pandas import DataFrame, Series


def table(source: DataSource, reading: Reading) -> Frame:
    """Return the columns in a folder; the target is the column that the folder names.

    Raises
    ------
    SettingError
        A file is missing or does not hold what it must.
    """
    path = source.path(reading.data_dir)
    features, aim, splits = _parts(path)
    columns = {str(name): _numbers(features[name]) for name in features.columns}
    return frame(str(path), columns, _numbers(aim), splits)


def _numbers(cells: Series[str]) -> Series[float] | Series[str]:
    """Return a column as numbers, of which the format is made; one that holds text as it is."""
    import pandas

    numbers = pandas.to_numeric(cells, errors="coerce")
    return cells if numbers.isna().any() else numbers


def _parts(path: Path) -> tuple[DataFrame, Series, list[tuple[np.ndarray, np.ndarray]]]:
    """Return features, target and splits, cells as text."""
    if (path / "data").is_dir():
        path = path / "data"
    if not (path / "data.txt").is_file():
        allowed = "a table's file, or a folder with data.txt, index_features.txt, index_target.txt"
        raise SettingError(str(path), "a folder without data.txt", allowed)
    cells = read_text(path / "data.txt", sep=r"\s+", header=None)
    features = _indices(path / "index_features.txt")
    aim = _indices(path / "index_target.txt")
    columns = np.concatenate([features, aim])
    if len(aim) != 1 or not np.isin(columns, np.arange(cells.shape[1])).all() or aim in features:
        held = f"features {features.tolist()}, target {aim.tolist()}"
        raise SettingError(
            str(path), held, f"columns from 0 to {cells.shape[1] - 1}, one the target"
        )
    count = len(list(path.glob("index_train_*.txt")))
    splits = [
        (_indices(path / f"index_train_{i}.txt"), _indices(path / f"index_test_{i}.txt"))
        for i in range(count)
    ]
    return cells[features.tolist()], cells[int(aim[0])], splits


def _indices(path: Path) -> np.ndarray:
    """Return the whole numbers of a file, one a line; written as floats they are taken too."""
    try:
        values = np.loadtxt(path, ndmin=1)
    except (OSError, ValueError) as error:
        raise SettingError(str(path), error, "whole numbers, one a line") from error
    indices = values.astype(np.int64)
    if values.ndim != 1 or (indices != values).any():
        raise SettingError(str(path), "other numbers", "whole numbers, one a line")
    return indices


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
    how = classes, reading.shape or shape_in(train, classes), resize, reading.group
    tested = read_classes(test, *how) if test else None
    arrays = arrays_of(classes, read_classes(train, *how), tested)
    said = [f"{part}: {described(part, classes)}" for part in (train, test) if part]
    if left := [place.name for place in parts.values() if test and place not in (train, test)]:
        said.append(f"{folder}: not read: {named(left)}")
    return {**arrays, NOTES: said}
