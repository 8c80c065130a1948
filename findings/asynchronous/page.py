"""Rounds that do not wait beside rounds that wait for less: docs/results/asynchronous.md."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from fedbary.figures.sheet import BLUE, GREY, ORANGE, RED, open_frame, sheet
from fedbary.report.cells import ACCURACY, NLL
from fedbary.report.differences import differences, p_value
from fedbary.report.markup import markdown_table
from fedbary.study.table import read_table
from findings._pairs import SEED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WINDOW = 5
"""So many rounds or aggregates are averaged: single ones differ."""

POINT = 0.01
"""What an accuracy may be below the other and count as near."""

ALL, ASYNC = "all", "not at all"
COLORS = {ALL: GREY, "the fastest 80 %": ORANGE, "4 seconds at most": RED, ASYNC: BLUE}
"""What the server waits for, and the colour of it."""

KEYS = ("dataset", "clients", "name", "alpha", "seed")
"""Columns whose values a pair of runs shares."""

TIME, SMOOTH = "virtual_seconds", ["accuracy", "nll"]


def read(results: Path) -> pd.DataFrame:
    """Return every round, what its server waits for, and scores as means of the last `WINDOW`.

    Sites do not go to and fro: their scores are those of a round.
    """
    table = read_table(results)
    waits = np.select(
        [table["mode"] == "async", table["wait_for"] < 1, table["deadline"] != "none"],
        [ASYNC, "the fastest 80 %", "4 seconds at most"],
        ALL,
    )
    table = table.assign(waits=waits, at=table["method"].replace("barycentre", ""))
    table["name"] = np.where(table["at"] == "", table["rule"], table["at"])
    table = table.sort_values(["run", "round"])
    means = table.groupby("run")[SMOOTH].rolling(WINDOW, min_periods=1).mean()
    means, sites = means.reset_index(level=0, drop=True), table["name"] == "PVI"
    table[SMOOTH] = means.where(~sites, table[SMOOTH])
    table["is_mean"] = sites | (table["round"] >= WINDOW)
    return table


def reached(table: pd.DataFrame, below: float = 0.0) -> pd.DataFrame:
    """Return a row a run: its last scores, and the `time` when it had the accuracy of `ALL`.

    That is the last accuracy of the run of its seed that waits for all, less `below`. The time is
    NaN where the run does not get there; `ratio` is to that of the run that waits for all.
    """
    last = table.groupby("run", sort=False).tail(1).set_index("run")
    keys = [key for key in KEYS if key in table]
    targets = last[last["waits"] == ALL].set_index(keys)["accuracy"] - below
    times = {}
    for run, rounds in table.groupby("run"):
        target = targets.get(tuple(rounds.iloc[0][keys]), np.nan)
        had = rounds[(rounds["accuracy"] >= target) & rounds["is_mean"]]
        times[run] = had[TIME].iloc[0] if len(had) else np.nan
    last["time"] = pd.Series(times)
    waited = last[last["waits"] == ALL].set_index(keys)["time"]
    last["ratio"] = [
        row["time"] / waited.get(tuple(row[keys]), np.nan) for _, row in last.iterrows()
    ]
    return last.reset_index()


def tables(results: Path) -> str:
    """Return times and scores by split, rule and what the server waits for, and the tests."""
    table = read(results)
    rows = reached(table)
    near = reached(table, POINT).set_index("run")
    body = []
    for alpha, name, waits in _sides(rows):
        runs = rows[(rows["alpha"] == alpha) & (rows["name"] == name) & (rows["waits"] == waits)]
        told = [*_time(runs), *_time(near.loc[runs["run"]])]
        shown = [metric.show(runs[metric.column]) for metric in (ACCURACY, NLL)]
        seconds = f"{runs[TIME].mean():.1f}"
        body.append([f"{alpha:g}", name, waits, seconds, *told, *shown])
    head = ["α", "rule", "waits for", "seconds in all", "to the accuracy", "ratio"]
    head += ["to a point below", "ratio", ACCURACY.label, NLL.label]
    return "\n\n".join([markdown_table(head, body), _tests(rows)])


def _time(runs: pd.DataFrame) -> list[str]:
    """Return the mean time of the runs that get there, how many do, and the median ratio."""
    there = runs[runs["time"].notna()]
    if there.empty:
        return [f"none of {len(runs)}", "–"]
    which = "" if len(there) == len(runs) else f" ({len(there)} of {len(runs)})"
    return [f"{there['time'].mean():.1f}{which}", f"{there['ratio'].median():.2f}"]


def _sides(rows: pd.DataFrame) -> list[tuple[float, str, str]]:
    found = rows[["alpha", "name", "waits"]].drop_duplicates()
    order = list(COLORS)
    sides = [*found.itertuples(index=False, name=None)]
    return sorted(sides, key=lambda side: (side[0], side[1], order.index(side[2])))


def _tests(rows: pd.DataFrame) -> str:
    body = []
    for (alpha, name), of_it in rows.groupby(["alpha", "name"]):
        found = differences(
            of_it.assign(side=of_it["waits"]), [(ASYNC, ALL)], [ACCURACY, NLL], SEED
        )
        accuracy, nll = found.itertuples()
        cells = [ACCURACY.difference(accuracy), NLL.difference(nll), p_value(nll.t_test)]
        body.append([f"{alpha:g}", name, *cells])
    return markdown_table(["α", "rule", "accuracy [95 %]", "NLL [95 %]", "p of the NLL"], body)


def picture(results: Path) -> Figure:
    """Return accuracy and NLL of FedAvg against virtual time, a row a split."""
    table = read(results)
    table = table[table["name"] == "FedAvg"]
    alphas = sorted(table["alpha"].unique())
    figure = sheet(9.0, 2.8 * len(alphas))
    grid = figure.subplots(len(alphas), 2, squeeze=False)
    for alpha, pair in zip(alphas, grid, strict=True):
        of_it = table[table["alpha"] == alpha]
        for axes, column, scale in zip(pair, SMOOTH, (100, 1), strict=True):
            for waits, color in COLORS.items():
                _draw(axes, of_it[of_it["waits"] == waits], column, scale, waits, color)
            axes.set_ylabel("accuracy %" if column == "accuracy" else "NLL")
            open_frame(axes)
        pair[0].set_ylim(30, 85)
        pair[1].set_ylim(0.5, 2.0)
        pair[0].set_title(f"Dirichlet {alpha:g}", loc="left")
    for axes in grid[-1]:
        axes.set_xlabel("virtual seconds")
    grid[0][0].legend(frameon=False, title="the server waits for", loc="lower right")
    return figure


def _draw(
    axes: Axes, runs: pd.DataFrame, column: str, scale: float, label: str, color: str
) -> None:
    """Draw the mean over seeds, as far as every one goes."""
    if runs.empty:
        return
    by_run = [rounds for _, rounds in runs.groupby("run")]
    times = np.linspace(0, min(rounds[TIME].max() for rounds in by_run), 200)
    lines = [np.interp(times, rounds[TIME], scale * rounds[column]) for rounds in by_run]
    axes.plot(times, np.mean(lines, axis=0), color=color, label=label)
