"""The files of a table: one with a row a run, one with a row a round; earlier versions had one."""

from __future__ import annotations

import gzip
import io
import zlib
from pathlib import Path

import pandas as pd

from fedbary.runs.whole import write_whole

RUNS = "runs.csv"
"""A row a run: its name, settings, versions, commit and who holds what."""

ROUNDS = "rounds.csv.gz"
"""A row a round: the run's name and its measurements."""

TOGETHER = "results.csv"
"""A row a round with the run's settings, written by earlier versions; it is only read."""

DIGITS = 6
"""Significant digits of a number in the table."""

COUNTS = "label_counts"


def is_table(folder: Path) -> bool:
    """Return whether a folder holds a table."""
    return any((folder / name).exists() for name in (RUNS, TOGETHER))


def write(folder: Path, table: pd.DataFrame) -> None:
    """Write a table at once: an interruption leaves the old one.

    Columns that are the same in all rounds of a run are written once a run: those up to `commit`,
    the time and the versions.
    """
    columns = [name for name in table if name != COUNTS]
    last = "commit" if "commit" in columns else "round"
    before = columns[: columns.index(last)]
    about = [c for c in columns if c in (*before, "commit", "started") or c.startswith("versions.")]
    values = table.groupby("run", sort=False)[about].nunique(dropna=False).max()
    once = ["run", *(name for name in about if name != "run" and values[name] == 1)]
    runs = table.drop_duplicates("run")[once]
    if COUNTS in table:
        starts = table[table["round"] == 0].set_index("run")[COUNTS]
        runs = runs.assign(**{COUNTS: runs["run"].map(starts)})
    rounds = table[["run", *(name for name in columns if name not in once)]]
    packed = gzip.compress(_text(rounds), mtime=0)
    write_whole(folder / ROUNDS, packed)
    write_whole(folder / RUNS, _text(runs))


def _text(rows: pd.DataFrame) -> bytes:
    return rows.to_csv(index=False, float_format=f"%.{DIGITS}g").encode()


def read(folder: Path) -> pd.DataFrame:
    """Return a table, a row a round.

    Raises
    ------
    FileNotFoundError
        There is none.
    ValueError
        A file is damaged, or the two are not of the same runs.
    """
    if not (folder / RUNS).exists():
        return _parsed((folder / TOGETHER).read_bytes())
    runs = _parsed((folder / RUNS).read_bytes())
    try:
        rounds = _parsed(gzip.decompress((folder / ROUNDS).read_bytes()))
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{ROUNDS}: {error}") from None
    if lost := sorted(set(runs["run"]) - set(rounds["run"])):
        raise ValueError(f"{ROUNDS} lacks {lost[0]}")
    counts = runs.pop(COUNTS) if COUNTS in runs else None
    table = rounds.merge(runs, on="run")
    table = table[[*runs, *(name for name in rounds if name not in runs)]]
    if counts is None:
        return table
    told = table["run"].map(counts.set_axis(runs["run"])).where(table["round"] == 0)
    return pd.concat([table, told.rename(COUNTS)], axis=1)


def _parsed(content: bytes) -> pd.DataFrame:
    if not content.endswith(b"\n"):
        raise ValueError("its last line is cut off")
    text = io.BytesIO(content)
    return pd.read_csv(text, dtype={"run": str}, keep_default_na=False, na_values=[""])
