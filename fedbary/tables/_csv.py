"""A CSV file with a header; one of its columns is the target. No splits are prescribed."""

from __future__ import annotations

from pathlib import Path

from fedbary.errors import SettingError
from fedbary.tables._table import Table
from fedbary.tables._text import numbers, read_text


def read(path: Path, target: str) -> Table:
    """Return the set in a CSV file.

    Raises
    ------
    SettingError
        There is no column of the target's name, or a cell is not a finite number.
    """
    frame = read_text(path, skipinitialspace=True)
    if len(frame.columns) == 1 and ";" in str(frame.columns[0]):
        raise SettingError(
            f"{path}: header", str(frame.columns[0]), "commas between, no semicolons"
        )
    if target not in frame.columns:
        columns = ", ".join(map(str, frame.columns))
        raise SettingError("target", target, f"a column of {path}: {columns}")
    return numbers(str(path), frame.drop(columns=target), frame[target], [])
