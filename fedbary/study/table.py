"""The tidy table of an experiment: a row per run and round.

The columns are, in this order: `format`; `run`, its name; every setting; the place and time of the
run (`device`, `commit`, `started`, `versions.*`); `round` and its measurements.

A name with dots is a value within a group:

- `local_models.worst10_accuracy`, `ood.auroc_entropy`;
- `rejection.0.1`: accuracy with a tenth rejected;
- `log_var.fc1.weight`: mean log-variance;
- `monte_carlo.ece_15`: standard deviation of the ECE over repeated draws of the networks;
- `by_chance.ece_15`: the ECE that a calibrated model of the same confidences has by chance.

`c_index` is C within sites, which a survival's sites tell after the last round, of the rows that
were trained on. `members` is the number of networks that predict together, a gate included.
`train_nll` is the mean over the training examples of the clients' last local epoch, in nats.
`label_counts`, in round 0, is the partition: JSON, a list of counts by class for each client (empty
for a regression).
"""

from __future__ import annotations

import io
import itertools
import json
import lzma
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from fedbary.data.readers import opened
from fedbary.errors import SettingError, one_line
from fedbary.runs.location import METRICS, SETTINGS
from fedbary.runs.run_folder import LAST, tensors_of
from fedbary.runs.schema import BEST_ROUND, SETTLED, STEP
from fedbary.runs.whole import write_whole
from fedbary.scores.survival import concordance
from fedbary.settings.config import read_yaml
from fedbary.study.arms import with_arms

COMMON = "common.csv"
"""One row: the settings and versions that are the same in all runs."""

RUNS = "runs.csv"
"""A row a run: its name, and the settings, versions and commit in which runs differ."""

ROUNDS = "rounds.csv.xz"
"""A row a round: the run's name and its measurements."""

RESULTS = "results.csv"
"""A row a run: its condition and arm, every setting, and the scores of its result."""

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
    write_whole(folder / RESULTS, _text(tidy(table)))


def tidy(table: pd.DataFrame) -> pd.DataFrame:
    """Return a row a run: its condition, arm, settings, versions and the scores of its result."""
    left_out = ("format", "label_counts", "log_var")
    kept = [name for name in table if not name.startswith(left_out)]
    last = result_rows(table)
    arms = with_arms(last)[["run", "condition", "arm"]]
    return arms.merge(last[kept].dropna(axis="columns", how="all"), on="run")


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
        runs = pd.concat([runs, pd.DataFrame(told, index=runs.index)], axis=1)
        runs = runs[[*common, *(name for name in runs if name not in common)]]
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


FORMAT = 1
"""Version of the table; it is increased whenever a column changes its meaning."""

ABOUT, GRID = "about.yaml", "grid.yaml"
"""Either holds an experiment's title and purpose; the former takes precedence."""

PER_CLIENT = ("clients", "refused", "journal")


def read_run(name: str, folder: Path) -> pd.DataFrame:
    """Return the rows of a run that is whole, a row a round, from its folder.

    Raises
    ------
    SettingError
        If its settings or its metrics are damaged, or rounds are missing.
    """
    with _as_written(folder / SETTINGS):
        content = read_yaml(folder / SETTINGS)
        fixed = {
            "format": FORMAT,
            "run": name,
            **public(content["settings"]),
            **{key: content[key] for key in ("device", "commit", "started")},
            **_flat({"versions": content["versions"]}),
        }
        counts = json.dumps(content["label_counts"], separators=(",", ":"))
    with _as_written(folder / METRICS):
        lines = (folder / METRICS).read_text(encoding="utf-8").splitlines()
        rows = [{**fixed, **_row(json.loads(line))} for line in lines]
        if [row["round"] for row in rows] != list(range(len(rows))) or not rows:
            raise ValueError("its rounds are not all there, once and in order")
        rows[0]["label_counts"] = counts
        rows[-1] |= _told_last(folder)
        table = pd.DataFrame(rows)
        if len(rows) <= _least_rounds(table):
            raise ValueError("its last rounds are missing")
    return table


@contextmanager
def _as_written(file: Path) -> Iterator[None]:
    """Let errors of reading a damaged file name the file."""
    try:
        yield
    except SettingError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SettingError(str(file), error, "the file as the run wrote it") from None


def _told_last(folder: Path) -> dict[str, float]:
    """Return the score of what sites told after the last round: C, for task=survival."""
    if not (folder / f"{LAST}.safetensors").exists():
        return {}
    found = tensors_of(folder, LAST)
    return {"c_index": concordance(found["pairs"].numpy())[0]} if "pairs" in found else {}


def _row(metrics: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of a round's metrics."""
    row = {"round": metrics.pop("round"), **_flat(metrics)}
    return {**row, **_training(metrics["clients"])} if "clients" in metrics else row


def _training(clients: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the clients' training metrics of a round, averaged."""
    row = {"train_seconds": math.fsum(client.get("train-seconds", 0) for client in clients)}
    told = [client for client in clients if {"train-nll", "num-examples"} <= client.keys()]
    if examples := sum(client["num-examples"] for client in told):
        total = sum(client["num-examples"] * client["train-nll"] for client in told)
        row["train_nll"] = total / examples
    return row


def read_table(results: str | Path) -> pd.DataFrame:
    """Return the table of a results folder; runs that stopped early have fewer rounds than asked.

    Raises
    ------
    SettingError
        If there is none, it is damaged, or another version of fedbary with another format wrote it.
    """
    results = Path(results)
    try:
        table = read(results)
    except FileNotFoundError:
        allowed = f"a folder with {RUNS}, as fedbary sweep fills it, or that of a run"
        if not results.is_dir():
            allowed += "; there is none of this name"
        elif (results / "runs").is_dir():
            allowed += "; repeat the fedbary sweep, which makes it from the runs there"
        raise SettingError("results", str(results), allowed) from None
    except (OSError, ValueError, KeyError) as error:
        raise _damaged(results, one_line(error)) from None
    if "format" in table and (table["format"] != FORMAT).any():
        other = table.loc[table["format"] != FORMAT, "format"].astype(str).iloc[0]
        allowed = f"format {FORMAT}; report on it with the version of fedbary that wrote it"
        raise SettingError(f"{results}: format", other, allowed)
    for column in ("format", "run", "round", "rounds"):
        if column not in table:
            raise _damaged(results, f"it has no column {column}")
    for run, rows in table.groupby("run"):
        if rows["round"].max() < _least_rounds(rows):
            raise _damaged(results, f"the rounds of {run} are not all there")
    return table


def result_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Return the row of each run's result: its best round if that is kept, else its last."""
    runs = table.groupby("run", sort=False)
    result = runs["round"].transform("max")
    if BEST_ROUND in table:
        result = runs[BEST_ROUND].transform("last").fillna(result)  # the last that is known
    return table[table["round"] == result]


def _least_rounds(rows: pd.DataFrame) -> float:
    """Return the least number of rounds of a run: all, or those before it may stop."""
    asked = float(rows["rounds"].max())
    patience = float(rows["patience"].max()) if "patience" in rows else 0.0
    best = float(rows[BEST_ROUND].max()) if BEST_ROUND in rows else math.nan
    if STEP in rows and (rows[STEP] < SETTLED).any():
        return min(asked, float(rows.loc[rows[STEP] < SETTLED, "round"].min()) + 1)
    return min(asked, best + patience) if patience > 0 and not math.isnan(best) else asked


def joined(runs: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the rows of runs in one table, settings before measurements."""
    table = pd.concat(runs, ignore_index=True)
    first = [c for run in runs for c in itertools.takewhile(lambda c: c != "commit", run)]
    columns = [c for c in dict.fromkeys([*first, *table]) if c != "label_counts"]
    return table[columns + [c for c in ("label_counts",) if c in table]]


def write_table(results: Path, runs: Sequence[pd.DataFrame]) -> None:
    """Write the runs' rows as the folder's table, at once: an interruption leaves the old one."""
    write(results, joined(runs))


def write_about(
    results: Path, title: str, about: str, lacking: Mapping[str, str] | None = None
) -> None:
    """Write the experiment's title and purpose, unless the folder's grid has the same.

    `lacking` are the runs of the grid that have not been made, each with the reason.
    """
    told, lacks = {"title": title, "about": about}, dict(lacking or {})
    if read_about(results) != told or _read_lacking(results) != lacks:
        whole = {**told, **({"lacking": lacks} if lacks else {})}
        text = yaml.safe_dump(whole, allow_unicode=True, sort_keys=False)
        write_whole(results / ABOUT, text.encode())


def read_about(results: Path) -> dict[str, str]:
    """Return the `title` and the `about` of a folder's about.yaml, else of its grid.yaml."""
    file = next((f for f in (results / ABOUT, results / GRID) if f.exists()), None)
    known = read_yaml(file) if file else {}
    texts = {key: known[key] for key in ("title", "about") if key in known}
    return {key: " ".join(str(text).split()) for key, text in texts.items()}


def _read_lacking(results: Path) -> dict[str, str]:
    found = read_yaml(results / ABOUT).get("lacking") if (results / ABOUT).exists() else None
    return {str(run): str(why) for run, why in found.items()} if isinstance(found, dict) else {}


def lacking_of(results: Path, table: pd.DataFrame) -> dict[str, str]:
    """Return the runs of the last sweep's grid that a folder's table lacks, with the reasons."""
    made = set(table["run"].astype(str))
    return {run: why for run, why in _read_lacking(results).items() if run not in made}


def find_mismatch(rows: pd.DataFrame, settings: Mapping[str, Any]) -> str | None:
    """Return the first setting that the table has for a run with another value; None if none.

    Settings that the table lacks for the run are ignored.
    """
    row = rows.iloc[0].dropna().to_dict()
    for key, value in settings.items():
        if key in row and str(row[key]) != str(value):
            try:
                same = math.isclose(float(row[key]), float(value), rel_tol=10 ** (1 - DIGITS))
            except (TypeError, ValueError):
                same = False
            if not same:
                return key
    return None


def public(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Remove paths of this machine's folders; the last part of a file's path stays."""
    kept = {k: v for k, v in settings.items() if k not in ("output", "data_dir")}
    for key in ("dataset", "test_dataset", "ood_dataset", "backbone_weights", "speeds"):
        if key in kept:
            kept[key] = Path(kept[key]).name
    return kept


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if key in PER_CLIENT:
            continue
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _damaged(results: Path, reason: str) -> SettingError:
    allowed = f"a whole table; move it away and sweep again to gather it from runs/ ({reason})"
    return SettingError("results", str(results), allowed)
