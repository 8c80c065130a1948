"""A user's own rows: a file of any table format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedbary.data.examples import Examples
from fedbary.data.frame import TARGET, Frame, frame_of
from fedbary.data.tables import Layout, read_file
from fedbary.data.tables._coded import features_of, labels_of, places_of
from fedbary.data.tables._layout import require, require_plain
from fedbary.errors import SettingError

if TYPE_CHECKING:
    from pandas import DataFrame


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


def coded_rows(held: DataFrame, target: str, layout: Layout) -> torch.Tensor:
    """Return the features (N, D) of the rows of a DataFrame, whose columns are found by name.

    Raises
    ------
    SettingError
        If it is none, or lacks a column; if a cell is no number, or a level that is not known.
    """
    import pandas

    if not isinstance(held, pandas.DataFrame):
        names = ", ".join(name for name, _ in layout.columns)
        allowed = f"a tensor (N, {len(layout.features)}), or a DataFrame with the columns {names}"
        raise SettingError("x", f"a {type(held).__name__}", allowed)
    rows = frame_of("x", held, target)
    x, unknown = features_of(rows, layout)
    if unknown.any():
        require_known(rows, layout)
    return torch.from_numpy(x)


def require_known(rows: Frame, layout: Layout) -> None:
    """Raise a SettingError at the first cell with a level that the layout does not have."""
    for column, levels in layout.columns:
        held = rows.columns[column]
        if levels:
            strange = (places_of(held, levels) < 0) & ~held.missing
            require(rows.name, f"feature {column!r}", held, strange, ", ".join(levels))


def require_rows(x: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Return the features (N, D) of rows, if a layout can have coded them.

    Raises
    ------
    SettingError
        If the width is another, a number is not finite, or the features of a column with levels
        are not a 1 among 0s.
    """
    features = layout.features
    if x.ndim != 2 or x.shape[1] != len(features):
        allowed = f"a tensor (N, {len(features)}) of {', '.join(features)}"
        raise SettingError("x", f"a tensor {tuple(x.shape)}", allowed)
    absent = x.isnan() if layout.missing != "refuse" else torch.zeros_like(x, dtype=torch.bool)
    if (bad := (~x.isfinite() & ~absent).nonzero()).numel():
        row, column = bad[0].tolist()
        where = f"x: row {row + 1}: {features[column]}"
        raise SettingError(where, float(x[row, column]), "a finite number")
    start = 0
    for column, levels in layout.columns:
        part = x[:, start : start + len(levels)]
        is_level = ((part == 0) | (part == 1)).all(1) & (part.sum(1) == 1)
        if levels and (odd := (~is_level & ~part.isnan().all(1)).nonzero()).numel():
            row = int(odd[0])
            allowed = f"a 1 among 0s for {', '.join(levels)}"
            raise SettingError(f"x: row {row + 1}: {column}", part[row].tolist(), allowed)
        start += max(1, len(levels))
    return x


def _numbers(held: Frame) -> np.ndarray:
    assert held.target is not None
    require_plain(held.name, TARGET, held.target)
    require(held.name, TARGET, held.target, ~np.isfinite(held.target.numbers), "a finite number")
    return held.target.numbers.copy()  # a frame's arrays may be read-only
