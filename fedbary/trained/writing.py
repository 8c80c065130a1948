"""Predictions and scores as files, written whole or not at all."""

from __future__ import annotations

import io
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbary.errors import SettingError
from fedbary.figures.sheet import DPI
from fedbary.runs.location import LOCK, locked
from fedbary.runs.whole import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""First characters of texts that spreadsheets take for formulas."""

_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?(e[-+]?\d+)?", re.ASCII | re.IGNORECASE)


def require_free(files: Iterable[Path], force: bool) -> None:
    """Raise a SettingError if a file is there already, unless it may be replaced."""
    for file in files:
        if file.exists() and not force:
            raise SettingError("output", str(file), "a file that does not exist yet, or --force")
        if not file.parent.is_dir():
            raise SettingError("output", str(file), "a file in a folder that exists")


def picture_beside(table: Path) -> Path:
    """Return the path of a table's picture; raise a SettingError if that is the table."""
    if table.is_dir() or table.suffix == ".png":
        raise SettingError("output", str(table), "the file of a table, such as predictions.csv")
    return table.with_suffix(".png")


@contextmanager
def only_writer(output: Path, others: Iterable[Path] = (), force: bool = False) -> Iterator[Path]:
    """Be the only command that writes an output and `others` beside it; yield an empty folder.

    The folder lies beside the output and is removed at the end.

    Raises
    ------
    RunError
        Another command is writing it.
    SettingError
        It is there already, perhaps since a moment ago; see `require_free`.
    """
    output = output.resolve()
    scratch = output.with_name(f".{output.name}.partial-fedbary")
    with locked(scratch, output):
        partial = scratch / "files"
        try:
            require_free([output, *others], force)
            shutil.rmtree(partial, ignore_errors=True)  # of a command that was killed
            partial.mkdir()
            yield partial
        finally:
            shutil.rmtree(partial, ignore_errors=True)
            (scratch / LOCK).unlink(missing_ok=True)
            with suppress(OSError):  # the next command has begun
                scratch.rmdir()


@contextmanager
def written_whole(folder: Path, force: bool = False) -> Iterator[Path]:
    """Yield a temporary folder to fill; its files move to `folder` at the end, all at once.

    With `force` files and folders of the same names in an existing `folder` are replaced; the
    others stay. One
    command does so at a time, see `only_writer`.
    """
    folder = folder.resolve()
    with only_writer(folder, force=force) as partial:
        yield partial
        if folder.exists():
            for file in sorted(each for each in partial.rglob("*") if each.is_file()):
                place = folder / file.relative_to(partial)
                place.parent.mkdir(exist_ok=True)
                os.replace(file, place)
        else:
            partial.rename(folder)


def write_table(file: Path, columns: Mapping[str, Any]) -> None:
    """Write columns as CSV; no spreadsheet takes a text for a formula.

    Numbers have six digits, or six of their row's `std`. NaN is an empty cell.
    """
    import pandas

    text, frame = io.StringIO(), pandas.DataFrame({**columns})
    std = frame.get("std", ())
    for name in frame:
        if frame[name].dtype.kind == "f" and len(std):
            frame[name] = [_written(*pair) for pair in zip(frame[name], std, strict=True)]
        elif frame[name].dtype.kind not in "iufb":
            frame[name] = frame[name].map(_safe)
    frame.set_axis(safe(frame), axis=1).to_csv(text, index=False, float_format="%.6g")
    write_whole(file, text.getvalue().encode())


def _written(value: float, std: float) -> str:
    """Return a number with six significant digits of its standard deviation."""
    if not np.isfinite(value):
        return "" if np.isnan(value) else str(value)
    above = np.floor(np.log10(abs(value))) - np.floor(np.log10(std)) if value and std > 0 else 0
    return f"{value:.{min(17, 6 + max(0, int(above)))}g}"


def write_picture(file: Path, figure: Figure) -> None:
    """Write a picture as PNG."""
    content = io.BytesIO()
    figure.savefig(content, dpi=DPI, format="png")
    write_whole(file, content.getvalue())


def write_text(file: Path, text: str) -> None:
    """Write a text."""
    write_whole(file, text.encode())


def safe(values: Iterable[object]) -> np.ndarray:
    """Return texts that no spreadsheet takes for formulas: an apostrophe leads such a text.

    A text that is a number stays: a class may be called -1. To reverse it, remove an apostrophe
    that is followed by one of ``= + - @``, a tab or a line's end.
    """
    return np.array([_safe(str(value)) for value in values], dtype=object)


def _safe(cell: Any) -> Any:
    is_formula = isinstance(cell, str) and cell.startswith(_FORMULA) and not _NUMBER.fullmatch(cell)
    return f"'{cell}" if is_formula else cell
