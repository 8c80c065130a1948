"""A frame's rows as features, by the layout that all sites agree on."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np

from fedbary.data.column import Column
from fedbary.data.frame import Frame
from fedbary.data.tables._layout import Layout, require, require_plain
from fedbary.errors import CellError

_ALSO = {"True": "1", "False": "0", "1": "True", "0": "False"}
"""Names that stand for each other where only one of them is known."""


def features_of(frame: Frame, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    """Code a frame's rows: numbers as they are, a level as 1 among 0s.

    Columns are found by name; those that the layout does not have are left out.

    Returns
    -------
    features : ndarray
        (N, D) float64; NaN where a value is missing and the layout does not refuse that.
    unknown : ndarray
        (N,) bool: rows with a level that the layout does not know, of which that column is all 0.

    Raises
    ------
    SettingError
        A column is missing, or a cell is missing or no number (names row and column).
    """
    held = frame.columns
    if missing := [column for column, _ in layout.columns if column not in held]:
        allowed = f"the federation's columns; missing: {', '.join(missing)}"
        told = f"{len(held)} columns; missing: {', '.join(missing)}"
        raise CellError(f"{frame.name}: columns", ", ".join(held), allowed, told)
    unknown = np.zeros(frame.count, dtype=bool)
    parts = []
    for column, levels in layout.columns:
        where, cells = f"feature {column!r}", held[column]
        require_plain(frame.name, where, cells)
        if layout.missing == "refuse":
            require(frame.name, where, cells, cells.missing, "")
        if levels:
            places = places_of(cells, levels)
            one_hot = (places[:, None] == np.arange(len(levels))).astype(np.float64)
            one_hot[cells.missing] = np.nan
            parts.append(one_hot)
            unknown |= (places < 0) & ~cells.missing
        else:
            bad = ~np.isfinite(cells.numbers) & ~cells.missing
            allowed = "a finite number, as the server's data hold there"
            require(frame.name, where, cells, bad, allowed)
            parts.append(cells.numbers[:, None])
    parts += [held[column].missing[:, None].astype(np.float64) for column in layout.indicated]
    return np.concatenate(parts, axis=1), unknown


def places_of(held: Column, names: Sequence[str]) -> np.ndarray:
    """Return the place among `names` of each cell, (N,) int64; −1 where it is none of them."""
    if held.texts is None:
        return np.full(len(held.missing), -1)
    places = {text: place for place, text in enumerate(names)}
    for text, other in _ALSO.items():
        if text not in places and other in names:
            places[text] = places[other]
    return np.array([places.get(text, -1) for text in held.texts.tolist()], dtype=np.int64)


def without(frame: Frame, layout: Layout, unknown: np.ndarray) -> Frame:
    """Return a frame without its rows of unknown levels, and say in which columns they lie.

    Raises
    ------
    SettingError
        There is no other row.
    """
    if not unknown.any():
        return frame
    found = []
    for column, levels in layout.columns:
        where, held = f"feature {column!r}", frame.columns[column]
        strange = (places_of(held, levels) < 0) & ~held.missing if levels else unknown[:0]
        if strange.all() and len(strange):
            require(
                frame.name, where, held, strange, f"{', '.join(levels)}, which the server knows"
            )
        if strange.any():
            found.append(f"{column} ({int(strange.sum())})")
    said = f"{int(unknown.sum())} of {frame.count} rows hold a level that the federation does not "
    said += f"know, and are left out: {', '.join(found)}"
    if unknown.all():
        raise CellError(frame.name, said, "a row with levels that the server knows")
    warnings.warn(f"{frame.name}: {said}", stacklevel=2)
    return frame.rows(~unknown)
