"""The files of a table: what is the same in all runs, a row a run, a row a round."""

from __future__ import annotations

import io
import lzma
import zlib
from pathlib import Path

import pandas as pd

from fedbary.data.unpacked import opened
from fedbary.runs.whole import write_whole

COMMON = "common.csv"
"""One row: the settings and versions that are the same in all runs."""

RUNS = "runs.csv"
"""A row a run: its name, and the settings, versions and commit in which runs differ."""

ROUNDS = "rounds.csv.xz"
"""A row a round: the run's name and its measurements."""

DIGITS = 6
"""Significant digits of a number in the table."""


def is_table(folder: Path) -> bool:
    """Return whether a folder holds a table."""
    return (folder / RUNS).exists()


def write(folder: Path, table: pd.DataFrame) -> None:
    """Write a table; an interruption leaves the old one.

    Columns that are the same in all rounds of a run, up to `commit`, and when and with what it was
    made are written once a run, or once if they are the same in all runs.
    """
    columns = list(table)
    last = "commit" if "commit" in columns else "round"
    before = columns[: columns.index(last)]
    about = [c for c in columns if c in (*before, "commit", "started") or c.startswith("versions.")]
    values = table.groupby("run", sort=False)[about].nunique(dropna=False).max()
    once = ["run", *(name for name in about if name != "run" and values[name] == 1)]
    runs = table.drop_duplicates("run")[once]
    differ = [name for name in once if name == "run" or runs[name].nunique(dropna=False) > 1]
    rounds = table[["run", *(name for name in columns if name not in once)]]
    common = runs.head(1).assign(**dict.fromkeys(differ))
    write_whole(folder / ROUNDS, lzma.compress(_text(rounds)))
    write_whole(folder / RUNS, _text(runs[differ]))
    write_whole(folder / COMMON, _text(common))


def _text(rows: pd.DataFrame) -> bytes:
    return rows.to_csv(index=False, float_format=f"%.{DIGITS}g").encode()


def read(folder: Path) -> pd.DataFrame:
    """Return a table, a row a round.

    A column of the runs goes before the common one, with which an interrupted write left it.

    Raises
    ------
    FileNotFoundError
        There is none.
    ValueError
        A file is damaged, or two are not of the same runs.
    """
    runs = _parsed((folder / RUNS).read_bytes())
    if (folder / COMMON).exists():
        common = _parsed((folder / COMMON).read_bytes())
        told = {name: value for name, (value,) in common.items() if name not in runs}
        runs = runs.assign(**told)[[*common, *(name for name in runs if name not in common)]]
    try:
        rounds = _parsed(_content(folder / ROUNDS))
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise ValueError(f"{ROUNDS}: {error}") from None
    if lost := sorted(set(runs["run"]) - set(rounds["run"])):
        raise ValueError(f"{ROUNDS} lacks {lost[0]}")
    table = rounds.merge(runs, on="run")
    return table[[*runs, *(name for name in rounds if name not in runs)]]


def _content(file: Path) -> bytes:
    with opened(file) as held:
        return held.read()


def _parsed(content: bytes) -> pd.DataFrame:
    if not content.endswith(b"\n"):
        raise ValueError("its last line is cut off")
    text = io.BytesIO(content)
    return pd.read_csv(text, dtype={"run": str}, keep_default_na=False, na_values=[""])
