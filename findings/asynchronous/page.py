"""Rounds that do not wait beside rounds that wait: docs/results/asynchronous.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from fedbary.figures.sheet import BLUE, GREEN, GREY, ORANGE, RED, open_frame, sheet
from fedbary.report.cells import ACCURACY, NLL
from fedbary.report.markup import markdown_table
from fedbary.study.table import read_table
from findings._pairs import of_pair

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NEAR = 0.005
"""What an NLL may be above the other and count as reached."""

ALL, PART, DEADLINE = "all", "the fastest 80 %", "a second at most"
ASYNC, MEMORY = "nobody", "nobody, remembers"
COLORS = {ALL: GREY, PART: ORANGE, DEADLINE: RED, ASYNC: GREEN, MEMORY: BLUE}
"""What the server waits for, and the colour of it."""

CELL = ["clients", "name", "alpha"]
"""Columns whose values the runs of a panel share."""

TIME, SCORES = "virtual_seconds", ["accuracy", "nll"]


def read(results: Path) -> pd.DataFrame:
    """Return every round, what its server waits for, and scores.

    Scores of an aggregate are means over the latest aggregates, of as many replies as a round has:
    single ones go to and fro. Those of sites do not.
    """
    table = read_table(results)
    for column in {"remember", "rule", "buffer"} - {*table}:  # sites have no rule
        table[column] = np.nan
    is_async, remembers = table["mode"] == "async", table["remember"].eq(True)
    chosen = [is_async & remembers, is_async, table["wait_for"] < 1, table["deadline"] != "none"]
    table = table.assign(waits=np.select(chosen, [MEMORY, ASYNC, PART, DEADLINE], ALL))
    of_rule = table["method"] == "barycentre"
    table["name"] = table["rule"].where(of_rule, table["method"])
    every = []
    for _, rounds in table.sort_values([*CELL, "run", "round"]).groupby("run", sort=False):
        first = rounds.iloc[0]
        is_mean = first["mode"] == "async" and first["method"] == "barycentre"
        window = round(first["clients"] / first["buffer"]) if is_mean else 1
        means = rounds[SCORES].rolling(window, min_periods=1).mean()
        every.append(rounds.assign(**means, is_whole=rounds["round"] >= window))
    return pd.concat(every)


def reached(table: pd.DataFrame, column: str = "accuracy", near: float = 0.0) -> pd.DataFrame:
    """Return a row a run: its last scores, and the `time` when it had the last score of `ALL`.

    That is the score, or one `near` to it, of the last round of the run of its seed that waits for
    all. The time is NaN where the run does not get there. `part` is the time over the whole time of
    the run that waits for all, `first` over the time of its first round with that score.
    """
    sign = 1 if column == "accuracy" else -1
    last = table.groupby("run", sort=False).tail(1).set_index("run")
    keys = [*CELL, "seed"]
    waited = last[last["waits"] == ALL].set_index(keys)
    times = {}
    for run, rounds in table.groupby("run"):
        target = sign * waited[column].get(tuple(rounds.iloc[0][keys]), np.nan) - near
        had = rounds[(sign * rounds[column] >= target) & rounds["is_whole"]]
        times[run] = had[TIME].iloc[0] if len(had) else np.nan
    last["time"] = pd.Series(times)
    waited = last[last["waits"] == ALL].set_index(keys)
    for name, divisor in (("part", TIME), ("first", "time")):
        by = [waited[divisor].get(tuple(row[keys]), np.nan) for _, row in last.iterrows()]
        last[name] = last["time"] / by
    return last.reset_index()


def tables(results: Path) -> str:
    """Return times and differences from the server that waits for all, a row a server."""
    table = read(results)
    rows, nll = reached(table), reached(table, "nll", NEAR).set_index("run")
    body = []
    for (clients, name, alpha), cell in rows.groupby(CELL, sort=False):
        seconds = cell.loc[cell["waits"] == ALL, TIME].mean()
        for waits in [each for each in COLORS if each != ALL and each in {*cell["waits"]}]:
            runs, sides = cell[cell["waits"] == waits], cell.assign(side=cell["waits"])
            parts = [runs["part"], runs["first"], nll.loc[runs["run"], "part"]]
            pairs = [of_pair(sides, (waits, ALL), metric) for metric in (ACCURACY, NLL)]
            scores = [ACCURACY.difference(pairs[0]), NLL.difference(pairs[1])]
            told = [f"{clients}", name, f"{alpha:g}", waits, f"{seconds:.0f}"]
            lasts = f"{(runs[TIME] / seconds).mean():.2f}"
            body.append([*told, *map(_middle, parts), lasts, *scores])
    head = ["clients", "method", "α", "waits for", "seconds of rounds", "accuracy after"]
    head += ["over the first such round", "NLL after", "ran for"]
    return markdown_table([*head, "last accuracy, % [95 %]", "last NLL [95 %]"], body)


def _middle(parts: pd.Series) -> str:
    """Return the median over all runs, where one that does not get there is the slowest."""
    filled, there = parts.fillna(float("inf")), int(parts.notna().sum())
    middle = filled.median()
    said = f"{middle:.2f}" if middle < float("inf") else "none"
    return said if there == len(parts) else f"{said} ({there} of {len(parts)})"


def facts(results: Path) -> Iterator[float]:
    """Yield what the page says beside its tables: the bound of an NLL."""
    yield NEAR


def picture(results: Path) -> Figure:
    """Draw accuracy against virtual time, a panel a federation."""
    table = read(results)
    cells = [*table.groupby(CELL, sort=False)]
    figure = sheet(9.0, 2.6 * -(-len(cells) // 2))
    panels = figure.subplots(-(-len(cells) // 2), 2, squeeze=False).ravel()
    for axes, ((clients, name, alpha), of_it) in zip(panels, cells, strict=False):
        for waits, color in COLORS.items():
            _draw(axes, of_it[of_it["waits"] == waits], waits, color)
        axes.set_title(f"{name}, {clients} clients, α = {alpha:g}", loc="left")
        axes.set(xlabel="virtual seconds", ylabel="accuracy %")
        open_frame(axes)
    for axes in panels[len(cells) :]:
        axes.set_axis_off()
    handles, labels = panels[0].get_legend_handles_labels()
    said = "the server waits for"
    figure.legend(handles, labels, title=said, loc="outside right", frameon=False)
    return figure


def _draw(axes: Axes, runs: pd.DataFrame, label: str, color: str) -> None:
    """Draw the mean over seeds, as far as every one goes."""
    if runs.empty:
        return
    by_run = [rounds for _, rounds in runs.groupby("run")]
    times = np.linspace(0, min(rounds[TIME].max() for rounds in by_run), 200)
    lines = [np.interp(times, rounds[TIME], 100 * rounds["accuracy"]) for rounds in by_run]
    axes.plot(times, np.mean(lines, axis=0), color=color, label=label)
