"""Choice among a source's columns."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedbary.data.cell_words import plain
from fedbary.data.frame import Frame
from fedbary.errors import CellError


@dataclass(frozen=True)
class Choice:
    """Columns of a source that are used as inputs.

    Parameters
    ----------
    columns : tuple of str
        The columns that are used; empty for all.
    leave_out : tuple of str
        Those that are not used.
    id : str
        The column that names a row, which is not used; it need not be there.
    missing : str
        Treatment of empty cells, see `Layout`.
    """

    columns: tuple[str, ...] = ()
    leave_out: tuple[str, ...] = ()
    id: str = ""
    missing: str = "refuse"


def names_in(text: str, none: str) -> tuple[str, ...]:
    """Return the names in a text, with commas between; none of the word that says so."""
    return () if text == none else tuple(plain(name) for name in text.split(","))


def chosen(frame: Frame, choice: Choice) -> Frame:
    """Return a frame with the columns that are used.

    Raises
    ------
    SettingError
        A column that is named is not there, or none is left.
    """
    for setting in ("columns", "leave_out"):
        for name in getattr(choice, setting):
            if name not in frame.columns:
                raise CellError(setting, name, perhaps(name, frame.name, list(frame.columns)))
    left = {*choice.leave_out, choice.id}
    wanted = [name for name in choice.columns or frame.columns if name not in left]
    if not wanted:
        raise CellError("leave_out", ",".join(left), "at least one column that is used")
    return replace(frame, columns={name: frame.columns[name] for name in wanted})


def perhaps(name: str, source: str, columns: Sequence[str]) -> str:
    """Say which columns there are, and which of them may have been meant."""
    folded = {column.casefold(): column for column in columns}
    close = difflib.get_close_matches(name.casefold(), folded, n=1)
    meant = f"; perhaps {folded[close[0]]}" if close else ""
    return f"a column of {source}: {', '.join(columns)}{meant}"
