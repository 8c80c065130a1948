"""A Parquet file: a table, or images in a column as Hugging Face writes them.

A table's target is one of its columns. No splits are prescribed.
"""

from __future__ import annotations

from typing import Any

from fedbary.data.forms import DataSource
from fedbary.data.frame import Frame, frame_of
from fedbary.data.readers import Reading
from fedbary.data.sources import hf
from fedbary.errors import SettingError
from fedbary.parts.imports import library


def table(source: DataSource, reading: Reading) -> Frame:
    """Return the columns and targets in a Parquet file.

    Raises
    ------
    SettingError
        It cannot be read, or pyarrow, which reads it, is not installed; or as in `frame_of`.
    """
    import pandas

    path = source.path(reading.data_dir)
    pyarrow = library("pyarrow", "parquet", "file", str(path))
    try:
        held = pandas.read_parquet(path, engine="pyarrow")
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise SettingError(str(path), error, "a Parquet file") from error
    return frame_of(str(path), held, reading.target)


def image_columns(source: DataSource, reading: Reading) -> dict[str, Any]:
    """Return the four arrays of images in a column; a SettingError as in `hf.load_hub`."""
    return hf.image_columns(source, reading)
