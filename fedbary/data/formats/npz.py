"""An ``.npz`` file: the arrays ``x_train``, ``y_train``, ``x_test``, ``y_test``.

Images may have the names of their ``classes``. A table has these four arrays, which prescribe a
split, or ``x`` (N, D) and ``y`` (N,) alone, in numbers or text. It may have the names of its
``features``. An array is read only once its claimed size is plausible.
"""

from __future__ import annotations

import math
import warnings
import zipfile
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from fedbary.data.forms import DataSource
from fedbary.data.frame import Frame, frame, plain
from fedbary.data.readers import RATIO, SMALL_ARRAY, Reading
from fedbary.errors import CellError, SettingError

PARTS = ("x_train", "y_train", "x_test", "y_test")

NAMES = "classes"
"""The array, which need not be there, of the names of the classes."""

KINDS = "iufbU"
"""Kinds of the dtypes that hold numbers or text."""

_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def images(source: DataSource, reading: Reading) -> dict[str, Any]:
    """Return the four arrays of images and perhaps the classes' names; others stay unread."""
    path = source.path(reading.data_dir)
    if not path.is_file():
        allowed = f"the path of an .npz file; there is none at {path}"
        raise SettingError("dataset", source.text, allowed)
    return read_npz_arrays(path, (*PARTS, NAMES, *reading.group_arrays))


def table(source: DataSource, reading: Reading) -> Frame:
    """Return the columns in a file; the target is ``y``, whatever the reading says.

    Raises
    ------
    SettingError
        The file is unreadable, arrays are missing or have shapes or values that do not fit.
    """
    path = source.path(reading.data_dir)
    x, y, names, splits = _arrays(path)
    right = x.ndim == 2 and x.dtype.kind in KINDS
    if not right or (y is not None and (y.shape != x.shape[:1] or y.dtype.kind not in KINDS)):
        held = ", ".join(f"{a.shape} {a.dtype}" for a in (x, y) if a is not None)
        raise SettingError(str(path), held, "features (N, D) and targets (N,), numbers or text")
    if len(set(names)) < len(names):
        twice = Counter(names).most_common(1)[0][0]
        raise CellError(f"{path}: features", twice, "a name for each column of its own")
    columns = dict(zip(names, x.T, strict=True)) | _group_column(path, reading, len(x))
    return frame(str(path), columns, y, splits)


def _group_column(path: Path, reading: Reading, count: int) -> dict[str, np.ndarray]:
    """Return the array of groups by its name, if the reading names one and the file has it."""
    if not reading.group:
        return {}
    arrays = read_npz_arrays(path, (reading.group, *reading.group_arrays))
    parts = [arrays[name] for name in reading.group_arrays if name in arrays]
    held = arrays.get(reading.group, np.concatenate(parts) if parts else None)
    if held is None:
        return {}
    if held.shape[:1] != (count,) and parts:  # a test part without labels is not read
        held = parts[0]
    if held.shape != (count,) or held.dtype.kind not in KINDS:
        told = f"{held.shape} {held.dtype}"
        raise SettingError(f"{path}: {reading.group}", told, "a group's name for each row")
    return {reading.group: held}


def read_npz_arrays(path: Path, names: Collection[str]) -> dict[str, Any]:
    """Return those arrays of an ``.npz`` file that have one of the names; others stay unread.

    Pickled objects are refused. So is an array that would take more than 64 MiB and more than 200
    times its bytes in the file; no memory is taken for it. Its bytes are those that the archive
    states, at most those of the whole file.

    Raises
    ------
    SettingError
        If the file is not there, special, damaged or of another kind.
    MemoryError
        If memory runs out.
    """
    if not path.is_file():
        raise SettingError("file", str(path), "the path of an .npz file; there is none")
    try:
        size = path.stat().st_size
        with zipfile.ZipFile(path) as archive:
            members = {member.filename: member for member in archive.infolist()}
            found = {name: members.get(f"{name}.npy") for name in names}
            return {
                name: _read(archive, member, size)
                for name, member in found.items()
                if member is not None
            }
    except MemoryError:
        raise
    except Exception as error:  # a stranger's file may raise any error
        allowed = "a file that numpy.savez wrote, without pickled objects"
        raise SettingError(str(path), error, allowed) from error


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo, size: int) -> np.ndarray:
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{member.filename} is packed as numpy packs no array")
    with archive.open(member) as file:
        held = _claimed_bytes(file)
    if held > max(SMALL_ARRAY, RATIO * min(member.compress_size, size)):
        raise ValueError(
            f"{member.filename} would take {held / 2**20:,.0f} MiB: too much for its file"
        )
    with archive.open(member) as file:
        return npy.read_array(file, allow_pickle=False)


def _claimed_bytes(file: IO[bytes]) -> int:
    """Return the bytes that an array will take, as its header says."""
    version = npy.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"an array of format {version[0]}.{version[1]}")
    shape, _, dtype = _HEADERS[version](file)
    return math.prod(shape) * dtype.itemsize


def _is_hidden(arrays: dict[str, np.ndarray]) -> bool:
    """Return whether all test targets are −1 and no training target is."""
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
        warnings.warn(f"{path}: y_test has no labels; a part of y_train is tested", stacklevel=2)
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
