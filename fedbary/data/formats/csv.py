"""A CSV file with a header; one of its columns is the target. No splits are prescribed.

Cells are separated by commas, semicolons, tabs or bars, whichever the header has most. The text is
in UTF-8, or in UTF-16 with its mark; the file may be packed, ``.csv.gz``. What is packed is counted
while it is read, see `fedbary.data.readers`.
"""

from __future__ import annotations

import csv
import io
import itertools
import re
import zlib
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from fedbary.data.forms import DataSource
from fedbary.data.frame import Frame, frame_of
from fedbary.data.readers import Reading, opened
from fedbary.errors import CellError, SettingError, is_of_memory

if TYPE_CHECKING:
    from pandas import DataFrame

MOST_COLUMNS = 10**4

LONGEST_LINE = 2**20
"""Most characters of a header's first line."""

TEXT = "a table of text in UTF-8, or in UTF-16 with its mark"

MARKS = (b"\xff\xfe", b"\xfe\xff")
"""First bytes of a file in UTF-16."""


def table(source: DataSource, reading: Reading) -> Frame:
    """Return the columns and targets in a CSV file.

    Raises
    ------
    SettingError
        It is no table of text, or would take too much memory for a packed file; or as in
        `frame_of`.
    """
    path = source.path(reading.data_dir)
    names, separator, encoding = _header(path)
    if len(names) > MOST_COLUMNS:
        raise CellError(f"{path}: header", f"{len(names)} columns", f"at most {MOST_COLUMNS}")
    held = read_text(
        path,
        header=0,
        names=range(len(names)),
        sep=separator,
        encoding=encoding,
        skipinitialspace=True,
    )
    again = (held == names).all(axis=1).to_numpy()
    if again.any():
        allowed = "a header at the top alone"
        raise CellError(f"{path}: row {again.argmax() + 1}", "the header again", allowed)
    return frame_of(str(path), held.set_axis(names, axis=1), reading.target, id=reading.id)


def read_text(path: Path, **layout: Any) -> DataFrame:
    """Return a text file's cells as they stand, all of them text.

    Raises
    ------
    SettingError
        The file cannot be read as a table, or its rows are longer than its header.
    MemoryError
        Memory ran out.
    """
    import pandas

    try:
        with opened(path) as file:
            cells = pandas.read_csv(file, dtype=str, keep_default_na=False, **layout)
    except SettingError:
        raise
    except pandas.errors.EmptyDataError:
        raise SettingError(str(path), "no line", "a table, a line a row") from None
    except UnicodeError:
        raise SettingError(str(path), "other bytes", TEXT) from None
    except (OSError, EOFError, ValueError, zlib.error) as error:
        if is_of_memory(error):
            raise MemoryError(f"{path}: {error}") from error
        raise SettingError(str(path), error, "a table, a line a row") from error
    if not isinstance(cells.index, pandas.RangeIndex):
        held = f"rows of more than {cells.shape[1]} cells"
        raise SettingError(str(path), held, f"{cells.shape[1]}, a cell for each name in the header")
    return cells


def _first_line(text: IO[str]) -> str:
    """Return the first line that is not blank, or so much of it as is too long; "" for none."""
    while line := text.readline(LONGEST_LINE + 1):
        if line.strip():
            return line
    return ""


def _header(path: Path) -> tuple[list[str], str, str]:
    """Return the names in a file's first line, what separates them, and the encoding."""
    try:
        with opened(path) as file:
            encoding = "utf-16" if file.read(2) in MARKS else "utf-8-sig"
        with io.TextIOWrapper(opened(path), encoding=encoding, newline="") as text:
            line = _first_line(text)
            if "\0" in line:
                raise UnicodeError
            if len(line) > LONGEST_LINE:
                allowed = f"a header of at most {LONGEST_LINE:,} characters"
                raise SettingError(str(path), "a longer first line", allowed)
            if re.fullmatch(r'"?sep=.?"?', line.strip()):
                allowed = "the names of the columns there; delete this line"
                raise CellError(f"{path}: the first line", line.strip(), allowed)
            bare = re.sub(r'"[^"]*"', "", line)
            separator = max(",;\t|", key=bare.count)  # ties go to the first
            lines = itertools.chain([line], text)  # a name may have a line's end in its quotes
            names = next(csv.reader(lines, delimiter=separator, skipinitialspace=True), [])
    except UnicodeError:
        raise SettingError(str(path), "other bytes", TEXT) from None
    except (OSError, EOFError, csv.Error, zlib.error) as error:
        raise SettingError(str(path), error, "a table, a line a row") from error
    if not names:
        raise SettingError(str(path), "no line", "a table, a line a row")
    return names, separator, encoding
