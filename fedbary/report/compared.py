"""Single runs side by side: the settings that differ, their scores, pairs of seeds, courses."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from fedbary.errors import SettingError
from fedbary.figures.courses import courses
from fedbary.figures.document import Document
from fedbary.figures.run_pictures import Curve
from fedbary.report.results import (
    HeadedRows,
    Metric,
    differences,
    pairs_table,
)
from fedbary.runs.resume import require_ended
from fedbary.settings.config import bookkeeping
from fedbary.study import arms
from fedbary.study.arms import plain, settings_of
from fedbary.study.table import joined, read_run, result_rows
from fedbary.tasks import task_class

PAIRS = """Each pair of arms is paired by the repeats that both have. The tests are the paired
    t-test, the same corrected for all pairs of a score (Holm), and Wilcoxon's. Least seen is the
    difference that so many pairs of runs would show in 80 % of repetitions."""

SHOWN_ROWS = 40
"""Most rows of pairs that are shown at once; more are folded."""


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


def metrics_of(table: pd.DataFrame) -> list[Metric]:
    """Return the same as columns of tables."""
    return [Metric(key, label, scale) for key, scale, label, _ in curves_of(table)]


def with_arms(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with the columns `condition` and `arm` of `fedbary.study.arms.with_arms`."""
    last = arms.with_arms(result_rows(table)).set_index("run")
    return table.assign(**{name: table["run"].map(last[name]) for name in ("condition", "arm")})


def runs_table(table: pd.DataFrame) -> HeadedRows:
    """Return a row a run: its arm, the settings that differ, and the scores of its result."""
    last, curves = result_rows(table), curves_of(table)
    settings = settings_of(last)
    left_out = {*bookkeeping(), "method", "rule"}
    keys = [key for key in settings if key not in left_out and settings[key].nunique() > 1]
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
    """Return the differences of a condition's arms over the seeds that both have.

    `table` is a result of `with_arms`, see `pairs_table`. Two arms need two seeds in common.
    """
    last = result_rows(table)
    pairs = list(itertools.combinations(last["arm"].unique(), 2))
    repeats = [name for name in arms.REPEATS if name in last]
    rows = last.assign(side=last["arm"])
    return pairs_table(differences(rows, pairs, metrics_of(table), repeats, 2))


def write(table: pd.DataFrame, document: Document) -> None:
    """Add the runs, and for each condition the differences and the courses of its arms.

    `table` is a result of `with_arms`.
    """
    document.text(
        "{runs} runs of {arms} arms, on {conditions}.",
        runs=table["run"].nunique(),
        arms=len(table[["condition", "arm"]].drop_duplicates()),
        conditions="; ".join(map(str, table["condition"].unique())),
    )
    document.table(*runs_table(table))
    conditions = list(table.groupby("condition", sort=False))
    for number, (condition, rows) in enumerate(conditions, 1):
        of_several = len(conditions) > 1
        if of_several:
            document.heading(str(condition), 3)
        if rows["arm"].nunique() < rows["run"].nunique():
            document.table(*arms_of(rows))
            header, body = pairs_of(rows)
            if body:
                document.text(PAIRS)
                folded = f"All {len(body)} rows, a pair and a score each"
                document.table(header, body, folded if len(body) > SHOWN_ROWS else "")
        add_courses(document, rows, f"-{number}" if of_several else "")


def add_courses(document: Document, table: pd.DataFrame, suffix: str = "") -> None:
    """Add the courses of a condition's arms: a picture a score, each with its legend.

    A narrow page has one picture a row, so letters stay legible on a telephone.
    """
    arms_rounds = rounds_of(table)
    drawn = [
        (f"courses-{curve[0]}{suffix}", courses(arms_rounds, [curve])) for curve in curves_of(table)
    ]
    document.figures(
        drawn, "Scores after each round: an arm's mean, and each of several runs as a thin line."
    )


def arms_of(table: pd.DataFrame) -> HeadedRows:
    """Return a row an arm of a condition: its runs, and the mean of each score."""
    metrics, last = metrics_of(table), result_rows(table)
    rows = [
        [str(arm), str(len(runs)), *(metric.show(runs[metric.column]) for metric in metrics)]
        for arm, runs in last.groupby("arm", sort=False)
    ]
    return ["arm", "runs", *(metric.label for metric in metrics)], rows


def rounds_of(table: pd.DataFrame) -> dict[str, list[list[dict[Any, Any]]]]:
    """Return the rounds of each arm's runs, in a condition."""
    return {
        str(arm): [run.to_dict("records") for _, run in rows.groupby("run", sort=False)]
        for arm, rows in table.groupby("arm", sort=False)
    }
