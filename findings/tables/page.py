"""Breast cancer at five clients: the table of docs/results/tables.md, of what `runs.py` wrote."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from fedbary.figures.sheet import BLUE, GREY, open_frame, sheet
from fedbary.report.cells import Metric
from fedbary.report.differences import p_value
from fedbary.report.markup import markdown_table
from findings._pairs import detectable, equivalence, of_pair, scores_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCORES = "scores.csv"
BOUND = 0.01
"""The difference in NLL below which two sides are taken for equal."""

METRICS = (
    Metric("accuracy", "accuracy %", 100, 1),
    Metric("nll", "NLL"),
    Metric("auroc", "AUROC %", 100, 1),
    Metric("sensitivity", "sensitivity %", 100, 1),
)


def tables(results: Path) -> str:
    """Return the scores, and how far each method is from the first, in Markdown."""
    rows = pd.read_csv(results / SCORES)
    scores = scores_table("", dict(list(rows.groupby("method", sort=False))), METRICS)
    rows = rows.assign(side=rows["method"], seed=rows["split"])
    first, *others = rows["side"].unique()
    body = []
    for other, rival in (*((each, first) for each in others), ("linear, RKLB", "linear, FedAvg")):
        accuracy, nll = (of_pair(rows, (other, rival), metric) for metric in METRICS[:2])
        cells = [METRICS[0].difference(accuracy), METRICS[1].difference(nll), p_value(nll.t_test)]
        body.append(
            [
                f"{other} − {rival}",
                *cells,
                p_value(equivalence(nll, BOUND)),
                f"{detectable(nll):.3f}",
            ]
        )
    head = ["accuracy, points [95 %]", "NLL [95 %]", "p, NLL", "p, equivalence", "seen from"]
    return f"{scores}\n\n{markdown_table(['pair', *head], body)}"


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
