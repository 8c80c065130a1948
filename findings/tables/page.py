"""Breast cancer at five clients: the table of docs/results/tables.md, of what `runs.py` wrote."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from fedbary.figures.sheet import BLUE, GREY, open_frame, sheet
from fedbary.report.cells import Metric
from findings._pairs import scores_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCORES = "scores.csv"
METRICS = (
    Metric("accuracy", "accuracy %", 100, 1),
    Metric("nll", "NLL"),
    Metric("auroc", "AUROC %", 100, 1),
    Metric("sensitivity", "sensitivity %", 100, 1),
)


def tables(results: Path) -> str:
    """Return the table in Markdown."""
    rows = pd.read_csv(results / SCORES)
    return scores_table("", dict(list(rows.groupby("method", sort=False))), METRICS)


def picture(results: Path) -> Figure:
    """Return the NLL of every split, a row a method, with the means."""
    rows = pd.read_csv(results / SCORES)
    figure = sheet(5.0, 2.0)
    axes = figure.subplots()
    names = list(rows["method"].unique())
    for row, name in enumerate(names):
        nll = rows.loc[rows["method"] == name, "nll"]
        axes.plot(nll, [row] * len(nll), "o", color=GREY, markersize=4, alpha=0.6)
        axes.plot(nll.mean(), row, "|", color=BLUE, markersize=16, markeredgewidth=2)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("NLL")
    open_frame(axes)
    return figure
