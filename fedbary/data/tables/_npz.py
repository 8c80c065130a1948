"""An ``.npz`` file: ``x`` (N, D) and ``y`` (N,), or both twice, ``x_train`` to ``y_test``.

Four arrays prescribe one split. An array ``features`` of D names is taken where it is there. For
a classification ``y`` holds whole numbers or text.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedbary.data.npz import read_npz_arrays
from fedbary.data.tables._frame import Frame, frame
from fedbary.data.tables._table import Table, table
from fedbary.errors import SettingError

Array = np.ndarray

PARTS = ("x_train", "y_train", "x_test", "y_test")


def read(path: Path, target: str) -> Table:
    """Return the regression set in an ``.npz`` file; the target is ``y``, whatever ``target`` says.

    Raises
    ------
    SettingError
        The file is unreadable, arrays are missing or have shapes or values that do not fit.
    """
    x, y, names, splits = _arrays(path)
    return table(str(path), x, y, names, splits)


def read_labelled(path: Path, target: str) -> Frame:
    """Return the columns and classes in an ``.npz`` file; the classes are ``y``.

    Raises
    ------
    SettingError
        The file is unreadable, arrays are missing or have shapes or values that do not fit.
    """
    x, y, names, splits = _arrays(path)
    if x.ndim != 2 or y.shape != x.shape[:1] or {x.dtype.kind, y.dtype.kind} - set("iufbU"):
        held = f"x {x.shape} {x.dtype}, y {y.shape} {y.dtype}"
        raise SettingError(str(path), held, "features (N, D) and classes (N,), numbers or text")
    if twice := {name for name in names if names.count(name) > 1}:
        raise SettingError(f"{path}: features", min(twice), "a name for each column of its own")
    return frame(str(path), dict(zip(names, x.T, strict=True)), y, splits)


def _arrays(path: Path) -> tuple[Array, Array, list[str], list[tuple[Array, Array]]]:
    """Return features, targets, names of the features, and the split if there is one."""
    arrays = read_npz_arrays(path, ("x", "y", "features", *PARTS))
    splits = []
    if all(part in arrays for part in PARTS):
        count = np.size(arrays["y_train"]), np.size(arrays["y_test"])
        try:
            x, y = (np.concatenate([arrays[f"{a}_train"], arrays[f"{a}_test"]]) for a in "xy")
        except ValueError as error:
            raise SettingError(str(path), error, "parts of as many features") from error
        rows = np.arange(sum(count))
        splits = [(rows[: count[0]], rows[count[0] :])]
    elif "x" in arrays and "y" in arrays:
        x, y = arrays["x"], arrays["y"]
    else:
        held = ", ".join(arrays) or "no array"
        raise SettingError(str(path), held, f"the arrays x, y or {', '.join(PARTS)}")
    names = arrays.get("features", np.arange(x.shape[-1] if x.ndim else 0))
    if x.ndim == 2 and names.shape != x.shape[1:]:
        raise SettingError(
            f"{path}: features", names.size, f"{x.shape[1]} names, one a column of x"
        )
    return x, y, [str(name) for name in names], splits
