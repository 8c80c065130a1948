"""Numbers from text; an error names the cell that is no number."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbary.errors import CellError, SettingError

if TYPE_CHECKING:
    from pandas import DataFrame

from fedbary.data.tables._table import Table, table


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
    except UnicodeDecodeError:
        raise SettingError(str(path), "other bytes", "a table of text in UTF-8") from None
    except (OSError, ValueError) as error:
        raise SettingError(str(path), error, "a table, a line a row") from error
    if not isinstance(cells.index, pandas.RangeIndex):
        held = f"rows of more than {cells.shape[1]} cells"
        raise SettingError(str(path), held, f"{cells.shape[1]}, a cell for each name in the header")
    return cells


def numbers(
    name: str,
    features: DataFrame,
    target: Any,
    splits: list[tuple[np.ndarray, np.ndarray]],
) -> Table:
    """Return the `Table` of a frame of features and a series, both of text.

    Raises
    ------
    SettingError
        The target holds no number at all; or as of `table`.
    """
    import pandas

    frame = features.assign(**{"\0target": target})
    values = frame.apply(pandas.to_numeric, errors="coerce").to_numpy(np.float64)
    if len(values) and np.isnan(values[:, -1]).all():
        allowed = "a column of numbers; task=tables predicts classes"
        raise CellError(f"{name}: target {target.name!r}", frame.iat[0, -1], allowed)
    names = [str(column) for column in features.columns]
    return table(
        name,
        values[:, :-1],
        values[:, -1],
        names,
        splits,
        lambda row, column: frame.iat[row, column],
    )
