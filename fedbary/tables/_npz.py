"""An ``.npz`` file: ``x`` (N, D) and ``y`` (N,), or both twice, ``x_train`` to ``y_test``.

Four arrays prescribe one split. An array ``features`` of D names is taken where it is there.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedbary.errors import SettingError
from fedbary.npz import read_npz_arrays
from fedbary.tables._table import Table, table

PARTS = ("x_train", "y_train", "x_test", "y_test")


def read(path: Path, target: str) -> Table:
    """Return the set in an ``.npz`` file; the target is ``y``, whatever ``target`` says.

    Raises
    ------
    SettingError
        The file is unreadable, arrays are missing or have shapes or values that do not fit.
    """
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
            f"{path}: features", len(names), f"{x.shape[1]} names, one a column of x"
        )
    return table(str(path), x, y, [str(name) for name in names], splits)
