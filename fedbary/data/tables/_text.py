"""A table of text, its cells as they stand."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbary.errors import SettingError

if TYPE_CHECKING:
    from pandas import DataFrame


def read_text(path: Path, **layout: Any) -> DataFrame:
    """Return a text file's cells as they stand, all of them text.

    Raises
    ------
    SettingError
        The file cannot be read as a table, or its rows are longer than its header.
    """
    import pandas

    try:
        cells = pandas.read_csv(path, dtype=str, keep_default_na=False, **layout)
    except pandas.errors.EmptyDataError:
        raise SettingError(str(path), "no line", "a table, a line a row") from None
    except UnicodeError:
        raise SettingError(str(path), "other bytes", "a table of text in UTF-8") from None
    except (OSError, ValueError) as error:
        raise SettingError(str(path), error, "a table, a line a row") from error
    if not isinstance(cells.index, pandas.RangeIndex):
        held = f"rows of more than {cells.shape[1]} cells"
        raise SettingError(str(path), held, f"{cells.shape[1]}, a cell for each name in the header")
    return cells
