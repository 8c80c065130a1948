"""Thirteen small sets: the first tables of docs/results/small-sets.md, of what `cells.py` wrote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from fedbary.figures.sheet import BLUE, GREY, open_frame, sheet
from fedbary.report.cells import Metric
from fedbary.report.markup import markdown_table
from fedbary.tasks._linear import FAR as SAID

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CELLS = "cells.jsonl"
SCORE = Metric("score", "", 100, 1)
FAR = 5
"""From how many points behind the linear model on a worst run is told."""


def read(results: Path) -> pd.DataFrame:
    """Return a row a cell, with the points that it is behind the linear model."""
    cells = pd.read_json(results / CELLS, lines=True)
    deal = cells["clients"].astype(str) + " clients, α " + cells["alpha"].astype(str)
    return cells.assign(deal=deal, behind=100 * (cells["linear"] - cells["score"]))


def scores_table(cells: pd.DataFrame) -> str:
    """Return mean ± standard deviation over the seeds: a row a set, a column a deal."""
    body = []
    for name, of_set in cells.groupby("set", sort=False):
        linear = of_set.drop_duplicates("seed")["linear"]
        scores = [SCORE.show(runs["score"]) for _, runs in of_set.groupby("deal", sort=False)]
        body.append([str(name), SCORE.show(linear), *scores])
    return markdown_table(["set", "linear", *cells["deal"].unique()], body)


def worst_table(cells: pd.DataFrame) -> str:
    """Return the runs that are furthest behind the linear model, on the sets where that is far."""
    body = []
    for name, of_set in cells.groupby("set", sort=False):
        worst = of_set[of_set["behind"].round(1) == of_set["behind"].max().round(1)]
        if (points := worst["behind"].iloc[0]) >= FAR:
            where = "; ".join(worst["deal"] + ", seed " + worst["seed"].astype(str))
            body.append([str(name), f"{points:.1f}", where])
    return markdown_table(["set", "points behind", "where"], body)


def told_table(cells: pd.DataFrame) -> str:
    """Return how many runs are far behind the linear model, and how many of these say so."""
    far = cells["behind"] > FAR - 1e-6
    told = cells["rival"] - cells["score"] > SAID - 1e-6
    body = [
        [str(name), str(int(far[rows].sum())), str(int((far & told)[rows].sum()))]
        for name, rows in cells.groupby("set", sort=False).groups.items()
        if far[rows].any()
    ]
    total = ["together", str(int(far.sum())), str(int((far & told).sum()))]
    return markdown_table(["set", "runs that are far behind", "of these say so"], [*body, total])


def tables(results: Path) -> str:
    """Return the three tables in Markdown."""
    cells = read(results)
    return "\n\n".join(table(cells) for table in (scores_table, worst_table, told_table))


def facts(results: Path) -> Iterator[float]:
    """Yield how far each set is behind in the mean over deals, and the worst score of each."""
    cells = read(results).groupby("set")
    yield from cells["behind"].mean()
    yield from 100 * cells["score"].min()


def picture(results: Path) -> Figure:
    """Return the lead over the linear model, a row a set: mean and range over deals and seeds."""
    cells = read(results)
    figure = sheet(5.0, 3.2)
    axes = figure.subplots()
    names = list(cells["set"].unique())
    for row, name in enumerate(names):
        lead = -cells.loc[cells["set"] == name, "behind"]
        axes.plot([lead.min(), lead.max()], [row, row], color=GREY, linewidth=1.6)
        axes.plot(lead.mean(), row, "o", color=BLUE, markersize=5)
    axes.axvline(0, color="black", linewidth=1)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("points ahead of the linear model")
    open_frame(axes)
    return figure
