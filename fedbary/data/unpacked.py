"""The memory that a packed file may take: a file of some kilobytes can claim gigabytes."""

from __future__ import annotations

import gzip
import io
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

from fedbary.errors import SettingError

RATIO = 200
"""Largest ratio of a large file's unpacked bytes to its own; images and tables stay far below."""

SMALL_ARRAY = 64 * 2**20
"""Bytes up to which an array may be packed by any ratio."""

SMALL_TABLE = 2**30
"""Bytes of memory up to which a table may be packed by any ratio."""

CELL_BYTES = 48
"""Memory of a table's cell, beside its text, while the table is read; as measured."""

TEXT_COPIES = 4
"""Copies of a cell's text while the table is read."""

UNPACKERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}
"""What opens a packed file, by the end of its name."""

BUFFER_BYTES = 2**17

_ENDS = (b",", b";", b"\t", b"|", b"\n")
"""Ends of cells, whatever separates a table's cells."""


def require_plausible(path: Path, cells: int, text_bytes: int) -> None:
    """Raise a SettingError if a packed table would take more memory than its file allows.

    Parameters
    ----------
    path : Path
        The file.
    cells : int
        Cells of the table.
    text_bytes : int
        Bytes of all texts in its cells.
    """
    most = max(SMALL_TABLE, RATIO * path.stat().st_size)
    if (held := CELL_BYTES * cells + TEXT_COPIES * text_bytes) > most:
        raise SettingError(
            str(path),
            f"a packed table that would take {held / 2**20:,.0f} MiB or more",
            f"at most {most / 2**20:,.0f} MiB, of so small a file; a .csv file has no such limit",
        )


class Counted(io.RawIOBase):
    """The bytes of a packed table, counted while they are read.

    `readinto` raises a SettingError as `require_plausible` does, before the memory is taken.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._file = path, UNPACKERS[path.suffix.lower()](path, "rb")
        self._cells = self._bytes = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer; return the number of bytes."""
        view = memoryview(buffer).cast("B")
        content = self._file.read(len(view))
        view[: len(content)] = content
        self._bytes += len(content)
        self._cells += sum(map(content.count, _ENDS))
        require_plausible(self._path, self._cells, self._bytes)
        return len(content)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()


def opened(path: Path) -> IO[bytes]:
    """Open a table's file; one that is packed is unpacked as it is read, see `Counted`."""
    if path.suffix.lower() not in UNPACKERS:
        return open(path, "rb")
    return cast(IO[bytes], io.BufferedReader(Counted(path), BUFFER_BYTES))
