"""A Parquet file: a table, or images in a column as Hugging Face writes them.

A table's target is one of its columns. No splits are prescribed. The file's metadata are read
first, and texts in batches, so that a small file of a huge table is refused before it takes memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbary.data.forms import DataSource
from fedbary.data.frame import Frame, frame_of
from fedbary.data.readers import SMALL_TABLE, TEXT_COPIES, Reading, require_plausible
from fedbary.data.sources import hf
from fedbary.errors import SettingError
from fedbary.parts.imports import library

if TYPE_CHECKING:
    from pandas import DataFrame

MOST_ROWS, LEAST_ROWS = 4096, 16
"""Rows of a batch whose texts are counted."""

NESTED: tuple[()] = ()
"""Each cell of a column of lists or structures, which stay unread: neither number nor text."""


def table(source: DataSource, reading: Reading) -> Frame:
    """Return the columns and targets in a Parquet file.

    Raises
    ------
    SettingError
        It cannot be read, or would take too much memory for its size; or pyarrow, which reads it,
        is not installed; or as in `frame_of`.
    """
    path = source.path(reading.data_dir)
    pyarrow = library("pyarrow", "parquet", "file", str(path))
    try:
        held = _read(path)
    except (SettingError, MemoryError):
        raise
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise SettingError(str(path), error, "a Parquet file") from error
    return frame_of(str(path), held, reading.target, id=reading.id)


def image_columns(source: DataSource, reading: Reading) -> dict[str, Any]:
    """Return the four arrays of images in a column; a SettingError as in `hf.load_hub`."""
    return hf.image_columns(source, reading)


def _read(path: Path) -> DataFrame:
    """Return the table in a file, once it is known to be no larger than plausible."""
    import pandas
    from pyarrow import types
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path) as file:
        kinds = {kind.name: kind.type for kind in file.schema_arrow}
        flat = [name for name, kind in kinds.items() if not types.is_nested(kind)]
        cells = file.metadata.num_rows * len(file.schema_arrow)
        require_plausible(path, cells, 0)
        _require_texts(path, file, [n for n in flat if not types.is_primitive(kinds[n])], cells)
    has_nested = len(flat) < len(kinds)
    held = pandas.read_parquet(path, engine="pyarrow", columns=flat if has_nested else None)
    for place, name in enumerate(kinds):
        if name not in flat:
            held.insert(min(place, held.shape[1]), name, [NESTED] * len(held))
    return held


def _require_texts(path: Path, file: Any, columns: list[str], cells: int) -> None:
    """Raise a SettingError if the texts of some columns would take too much memory.

    A dictionary's text is stored once and may stand in every row. So the rows of a batch are few
    where a column's part of a group of rows is large, which may be one text.
    """
    metadata, held = file.metadata, 0
    if not columns:
        return
    parts = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    largest = max(
        (part.column(i).total_uncompressed_size for part in parts for i in range(part.num_columns)),
        default=0,
    )
    require_plausible(path, cells, largest)
    rows = SMALL_TABLE // TEXT_COPIES // max(1, largest)
    rows = max(LEAST_ROWS, min(MOST_ROWS, rows))
    for batch in file.iter_batches(rows, columns=columns, use_threads=False):
        for column in batch.columns:
            held += _plain(column).nbytes
        require_plausible(path, cells, held)


def _plain(column: Any) -> Any:
    """Return an array of a column, each cell with its own value."""
    return column.dictionary_decode() if hasattr(column, "dictionary_decode") else column
