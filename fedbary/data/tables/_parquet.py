"""A Parquet file; one of its columns is the target. No splits are prescribed."""

from __future__ import annotations

from pathlib import Path

from fedbary.data.frame import Frame
from fedbary.data.tables._dataframe import frame_of
from fedbary.errors import SettingError
from fedbary.parts.imports import library


def read(path: Path, target: str) -> Frame:
    """Return the columns and targets in a Parquet file.

    Raises
    ------
    SettingError
        It cannot be read, or pyarrow, which reads it, is not installed; or as of `frame_of`.
    """
    import pandas

    pyarrow = library("pyarrow", "parquet", "file", str(path))
    try:
        held = pandas.read_parquet(path, engine="pyarrow")
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise SettingError(str(path), error, "a Parquet file") from error
    return frame_of(str(path), held, target)
