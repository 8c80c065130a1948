"""Rows of one's own: a CSV or Parquet file, or an ``.npz`` file with names of its features."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from fedbary.data.examples import Examples
from fedbary.data.npz import read_npz_arrays
from fedbary.data.tables import Layout, _csv, _parquet
from fedbary.data.tables._dataframe import columns_of
from fedbary.data.tables._frame import frame
from fedbary.data.tables._labelled import encode
from fedbary.errors import SettingError

Columns = dict[str, np.ndarray]

FRAMES = {".csv": _csv.cells, ".parquet": _parquet.cells}
"""What reads the rows of a file, by how it ends."""


def read_classified(path: Path, target: str, layout: Layout) -> Examples:
    """Read rows to classify, coded as the federation's, with classes where there is the target.

    Columns are found by name; others are `unused`, and their order does not matter.

    Raises
    ------
    SettingError
        If a column is missing, or a cell is no number or no level that the model knows.
    """
    columns, count = _columns(path, target)
    known = {name: columns[name] for name, _ in layout.columns if name in columns}
    classes = columns.get(target, np.full(count, layout.classes[0], dtype=object))
    held = encode(frame(str(path), known or columns, classes), layout)
    y = held.y if target in columns else None
    return Examples(_rows(count), held.x, y, columns, _others(columns, [*known, target]))


def read_measured(path: Path, target: str, features: Sequence[str]) -> Examples:
    """Read rows of which a number is predicted, with it where there is the target.

    Raises
    ------
    SettingError
        If a column is missing, or a cell is no finite number.
    """
    columns, count = _columns(path, target)
    wanted = [*features, *([target] if target in columns else [])]
    if missing := [name for name in features if name not in columns]:
        allowed = f"the model's columns; missing: {', '.join(missing)}"
        raise SettingError(f"{path}: columns", ", ".join(columns), allowed)
    of_one = np.full(count, "0", dtype=object)
    numbers = frame(str(path), {name: columns[name] for name in wanted}, of_one).columns
    for name, values in numbers.items():
        if values.dtype == object:
            where = f"{path}: row 1, {name!r}"
            raise SettingError(where, values[0], "a finite number")
    x = torch.from_numpy(np.column_stack([numbers[name] for name in features]))
    y = torch.from_numpy(numbers[target].copy()) if target in columns else None
    return Examples(_rows(count), x, y, columns, _others(columns, wanted))


def _rows(count: int) -> tuple[str, ...]:
    return tuple(str(row) for row in range(1, count + 1))


def _others(columns: Columns, used: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in columns if name not in used)


def _columns(path: Path, target: str) -> tuple[Columns, int]:
    """Return the columns of a file by name, and the number of rows."""
    if path.suffix in FRAMES and path.is_file():
        held = FRAMES[path.suffix](path)
        columns, count = columns_of(str(path), held), len(held)
    elif path.suffix == ".npz":
        arrays = read_npz_arrays(path, ("x", "y", "features"))
        if "x" not in arrays or arrays["x"].ndim != 2:
            raise SettingError(str(path), ", ".join(arrays) or "no array", "x (N, D)")
        count, width = arrays["x"].shape
        names = [str(name) for name in arrays.get("features", np.arange(width))]
        if len(names) != width or len(set(names)) < width:
            raise SettingError(f"{path}: features", len(names), f"{width} different names")
        columns = dict(zip(names, arrays["x"].T, strict=True))
        if "y" in arrays:
            if arrays["y"].shape != (count,):
                raise SettingError(f"{path}: y", arrays["y"].shape, f"({count},), one a row of x")
            columns[target] = arrays["y"]
    else:
        raise SettingError("data", str(path), "the path of a .csv, a .parquet or an .npz file")
    if not count:
        raise SettingError(str(path), "no row", "at least one")
    return columns, count
