"""An ``.npz`` file: ``x`` (N, D) and ``y`` (N,), or both twice, ``x_train`` to ``y_test``.

Four arrays prescribe one split. An array ``features`` of D names is taken where it is there. ``y``
holds numbers, or text for classes.
"""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path

import numpy as np

from fedbary.data.frame import Frame, frame
from fedbary.data.npz import read_npz_arrays
from fedbary.data.tables._words import plain
from fedbary.errors import CellError, SettingError

PARTS = ("x_train", "y_train", "x_test", "y_test")

KINDS = "iufbU"
"""Of dtypes that hold numbers or text."""


def read(path: Path, target: str) -> Frame:
    """Return the columns in an ``.npz`` file; the target is ``y``, whatever ``target`` says.

    Raises
    ------
    SettingError
        The file is unreadable, arrays are missing or have shapes or values that do not fit.
    """
    x, y, names, splits = _arrays(path)
    right = x.ndim == 2 and x.dtype.kind in KINDS
    if not right or (y is not None and (y.shape != x.shape[:1] or y.dtype.kind not in KINDS)):
        held = ", ".join(f"{a.shape} {a.dtype}" for a in (x, y) if a is not None)
        raise SettingError(str(path), held, "features (N, D) and targets (N,), numbers or text")
    if len(set(names)) < len(names):
        twice = Counter(names).most_common(1)[0][0]
        raise CellError(f"{path}: features", twice, "a name for each column of its own")
    return frame(str(path), dict(zip(names, x.T, strict=True)), y, splits)


def _is_hidden(arrays: dict[str, np.ndarray]) -> bool:
    """Whether the test part's targets are all −1, which the training part's never are."""
    held, known = arrays["y_test"], arrays["y_train"]
    return bool(np.size(held) and (held == -1).all() and not (known == -1).any())


def _arrays(
    path: Path,
) -> tuple[np.ndarray, np.ndarray | None, list[str], list[tuple[np.ndarray, np.ndarray]]]:
    """Return features, targets if there are any, names of the features, and perhaps a split."""
    y: np.ndarray | None
    arrays = read_npz_arrays(path, ("x", "y", "features", *PARTS))
    splits = []
    if all(part in arrays for part in PARTS) and _is_hidden(arrays):
        warnings.warn(f"{path}: y_test has no labels, a part of y_train tests", stacklevel=2)
        x, y = arrays["x_train"], arrays["y_train"]
    elif all(part in arrays for part in PARTS):
        count = np.size(arrays["y_train"]), np.size(arrays["y_test"])
        try:
            x, y = (np.concatenate([arrays[f"{a}_train"], arrays[f"{a}_test"]]) for a in "xy")
        except ValueError as error:
            raise SettingError(str(path), error, "parts of as many features") from error
        rows = np.arange(sum(count))
        splits = [(rows[: count[0]], rows[count[0] :])]
    elif "x" in arrays:
        x, y = arrays["x"], arrays.get("y")
    else:
        held = ", ".join(arrays) or "no array"
        raise SettingError(str(path), held, f"the arrays x, y or {', '.join(PARTS)}")
    names = arrays.get("features", np.arange(x.shape[-1] if x.ndim else 0))
    if x.ndim == 2 and names.shape != x.shape[1:]:
        raise SettingError(
            f"{path}: features", names.size, f"{x.shape[1]} names, one a column of x"
        )
    return x, y, [plain(name) for name in names], splits
