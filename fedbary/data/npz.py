"""Arrays of an ``.npz`` file, read only after their size is known to be that of honest data."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from fedbary.errors import SettingError

SMALL = 64 * 2**20
"""Bytes up to which an array may be compressed as it likes."""

COMPRESSED = 200
"""How many times smaller a larger array may be in the file: images and tables are far from it."""

_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_npz_arrays(path: Path, names: Collection[str]) -> dict[str, Any]:
    """Return those arrays of an ``.npz`` file that have one of the names; others stay unread.

    Pickled objects are refused, and an array that would take more than 64 MiB and more than 200
    times its part of the file, before memory is taken for it.

    Raises
    ------
    SettingError
        If the file is not there, special, damaged or of another kind.
    """
    if not path.is_file():
        raise SettingError("file", str(path), "the path of an .npz file; there is none")
    try:
        with zipfile.ZipFile(path) as archive:
            members = {member.filename: member for member in archive.infolist()}
            found = {name: members.get(f"{name}.npy") for name in names}
            return {
                name: _read(archive, member) for name, member in found.items() if member is not None
            }
    except Exception as error:  # whatever reading a stranger's file raises
        allowed = "a file that numpy.savez wrote, without pickled objects"
        raise SettingError(str(path), error, allowed) from error


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(member) as file:
        held = _claimed_bytes(file)
    if held > max(SMALL, COMPRESSED * member.compress_size):
        raise ValueError(f"{member.filename} would take {held / 2**20:,.0f} MiB: no honest data do")
    with archive.open(member) as file:
        return npy.read_array(file, allow_pickle=False)


def _claimed_bytes(file: IO[bytes]) -> int:
    """Return the bytes that an array will take, as its header says."""
    version = npy.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"an array of format {version[0]}.{version[1]}")
    shape, _, dtype = _HEADERS[version](file)
    return math.prod(shape) * dtype.itemsize
