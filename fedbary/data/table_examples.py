"""A user's own rows: a file of any table format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from fedbary.data.examples import Examples
from fedbary.data.frame import TARGET, Frame
from fedbary.data.tables import Layout, read_file
from fedbary.data.tables._coded import features_of, labels_of
from fedbary.data.tables._layout import require, require_plain
from fedbary.errors import SettingError


def read_rows(path: Path, target: str, layout: Layout, id: str = "") -> Examples:
    """Read rows to predict, coded as the federation's, with targets where there are some.

    Columns are found by name, in any order; others are `unused`, except for the column `id`, which
    names rows. A target that is empty in every row counts as absent.

    Raises
    ------
    SettingError
        If a column is missing, or a cell is no number, or no class or number that is predicted.
    """
    held = read_file(path, target)
    if held is None:
        raise SettingError("data", str(path), "the path of a .csv, a .parquet or an .npz file")
    x, unknown = features_of(held, layout)
    y = None
    if held.target is not None and not held.target.missing.all():
        y = torch.from_numpy(labels_of(held, layout) if layout.classes else _numbers(held))
    names = tuple(str(row) for row in range(1, held.count + 1))
    known = {id, *(name for name, _ in layout.columns)}
    columns = {name: column.values for name, column in held.columns.items()}
    if held.target is not None:
        columns[target] = held.target.values
    return Examples(
        names,
        torch.from_numpy(x),
        y,
        columns,
        tuple(name for name in held.columns if name not in known),
        unknown=tuple(np.flatnonzero(unknown).tolist()),
    )


def _numbers(held: Frame) -> np.ndarray:
    assert held.target is not None
    require_plain(held.name, TARGET, held.target)
    require(held.name, TARGET, held.target, ~np.isfinite(held.target.numbers), "a finite number")
    return held.target.numbers.copy()  # a frame's arrays may be read-only
