"""Regression data as tensors: a set that ships with the package, or a file or folder of one's own.

A set by name is one module of this package whose name has no leading underscore, with
``read(data_dir)``; a format is one whose name has, with ``read(path, target)``. Both return a
`Table`, and nothing else has to be told of a new set.
"""

from __future__ import annotations

import importlib
from pathlib import Path

from fedbary.errors import SettingError
from fedbary.registry import modules
from fedbary.tables import _csv, _npz, _uci
from fedbary.tables._table import Split, Table

__all__ = ["Split", "Table", "load", "names"]

_loaded: dict[tuple[str, Path, str], Table] = {}


def names() -> tuple[str, ...]:
    """Return the names of the sets that ship with the package, in alphabetical order."""
    return modules("tables")


def load(name: str, data_dir: Path | str, target: str = "") -> Table:
    """Return a regression set, read once per process.

    Parameters
    ----------
    name : str
        One of `names`; or the path of a ``.csv`` or ``.npz`` file, or of a folder in the format of
        the UCI sets: absolute, relative to the working directory, or else to ``data_dir``.
    data_dir : Path or str
        Where data sets lie.
    target : str
        The column of a CSV file that is to be predicted; unused otherwise.

    Returns
    -------
    Table
        The same object for the same arguments throughout the process. Treat it as read-only.

    Raises
    ------
    SettingError
        There is no such set, or it holds what it must not; the message says what and where.
    """
    key = name, Path(data_dir).expanduser().absolute(), target
    if key not in _loaded:
        _loaded[key] = _read(*key)
    return _loaded[key]


def _read(name: str, data_dir: Path, target: str) -> Table:
    if name in names():
        table: Table = importlib.import_module(f"{__name__}.{name}").read(data_dir)
        return table
    path = Path(name).expanduser()
    if not path.exists():
        path = data_dir / path
    if name and path.is_dir():
        return _uci.read(path, target)
    if path.is_file() and path.suffix == ".csv":
        return _csv.read(path, target)
    if path.is_file() and path.suffix == ".npz":
        return _npz.read(path, target)
    allowed = f"{', '.join(names())}, or the path of a .csv file, an .npz file or a UCI folder"
    raise SettingError("dataset", name, allowed)
