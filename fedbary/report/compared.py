"""Single runs side by side: the settings that differ, their scores, pairs of seeds."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from fedbary.errors import SettingError
from fedbary.figures.run_pictures import Curve
from fedbary.report.results import (
    REPEATS,
    HeadedRows,
    Metric,
    conditions_of,
    differences,
    pairs_table,
    plain,
)
from fedbary.runs.resume import require_ended
from fedbary.settings.config import bookkeeping
from fedbary.study.table import joined, read_run, result_rows, settings_of, with_methods
from fedbary.tasks import task_class

LONGEST = 40
"""The most characters of an arm's name."""


def read_one(folder: Path, name: str = "") -> pd.DataFrame:
    """Return the rows of a run that has ended, a row a round.

    Raises
    ------
    SettingError, RunError
        If the folder holds none, see `fedbary.runs.resume.require_ended`, or it is damaged.
    """
    require_ended(folder)
    return read_run(name or folder.resolve().name, folder)


def read_runs(folders: Sequence[Path]) -> pd.DataFrame:
    """Return the rows of several runs of one task, each under a name of its own.

    Raises
    ------
    SettingError
        If there are fewer than two, one has not ended, or their tasks differ.
    """
    if len({folder.resolve() for folder in folders}) < 2:
        raise SettingError("run", ", ".join(map(str, folders)), "two or more different runs")
    known = [folder.resolve().name for folder in folders]
    names = known if len(set(known)) == len(known) else [str(folder) for folder in folders]
    table = joined([read_one(*pair) for pair in zip(folders, names, strict=True)])
    if table["task"].nunique() > 1:
        held = ", ".join(table["task"].unique())
        raise SettingError("task", held, "runs of one task")
    return table


def curves_of(table: pd.DataFrame) -> tuple[Curve, ...]:
    """Return the scores that the runs' task shows."""
    return task_class(str(table["task"].iloc[0])).curves


def with_arms(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with a column `arm`, the same for runs that differ in nothing but repeats.

    An arm's name is its method, with the settings in which runs of this method differ, and with
    those of data and federation in which any runs differ. A long name is cut, and numbered.
    """
    keys = [key for key in _differing(table) if key not in {*REPEATS, "method", "rule"}]
    last = result_rows(with_methods(table)).set_index("run")
    common = {"dataset", *conditions_of(last)}
    arms = last["rule"].astype(str)
    for _, runs in last.groupby("rule", sort=False):
        for key in keys:
            if key in common or runs[key].astype(object).nunique(dropna=False) > 1:
                word = {"bayesian_layers": "n"}.get(key, key)
                told = runs[key].map(lambda value, word=word: f", {word}={plain(value)}")
                arms[runs.index] += told.where(runs[key].notna(), "")
    names = list(dict.fromkeys(arms))
    short = {
        name: name if len(name) <= LONGEST else f"{name[:LONGEST]}… ({number})"
        for number, name in enumerate(names, 1)
    }
    return table.assign(arm=table["run"].map(arms.map(short)))


def runs_table(table: pd.DataFrame) -> HeadedRows:
    """Return a row a run: its arm, the settings that differ, and the scores of its result."""
    last, curves = result_rows(table), curves_of(table)
    keys = [key for key in _differing(table) if key not in ("method", "rule")]
    keys = [key for key in keys if last[key].astype(object).nunique() > 1]
    rows = [
        [
            str(run["run"]),
            str(run["arm"]),
            *("–" if pd.isna(run[key]) else plain(run[key]) for key in keys),
            str(run["round"]),
            *(f"{scale * run[key]:.4f}" for key, scale, *_ in curves),
        ]
        for run in last.to_dict("records")
    ]
    return ["run", "arm", *keys, "round", *(label for _, _, label, _ in curves)], rows


def pairs_of(table: pd.DataFrame) -> HeadedRows:
    """Return the differences of arms over the seeds that both have, see `pairs_table`.

    `table` is a result of `with_arms`. Two arms need two seeds in common.
    """
    last = result_rows(table)
    metrics = [Metric(key, label, scale) for key, scale, label, _ in curves_of(table)]
    pairs = list(itertools.combinations(last["arm"].unique(), 2))
    repeats = [name for name in REPEATS if name in last]
    return pairs_table(differences(last.assign(side=last["arm"]), pairs, metrics, repeats, 2))


def rounds_of(table: pd.DataFrame) -> dict[str, list[list[dict[Any, Any]]]]:
    """Return the rounds of each arm's runs."""
    arms = table.groupby("arm", sort=False)
    return {
        str(arm): [run.to_dict("records") for _, run in rows.groupby("run", sort=False)]
        for arm, rows in arms
    }


def _differing(table: pd.DataFrame) -> list[str]:
    settings = settings_of(result_rows(table))
    return [
        key
        for key in settings
        if key not in bookkeeping() and settings[key].astype(object).nunique(dropna=False) > 1
    ]
