"""Streams of five tasks: the tables and the picture of docs/results/stream.md, of `cells.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from fedbary.figures.looks import COLORS
from fedbary.figures.sheet import literal, open_frame, sheet
from fedbary.report.cells import Metric
from fedbary.report.markup import markdown_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CELLS = "cells.jsonl"
STREAMS = {"classes": "classes in pairs", "turns": "digits that turn"}
SCORES = (
    Metric("new", "the last task, %", 100, 1),
    Metric("old", "earlier tasks, %", 100, 1),
    Metric("nll", "NLL, all tasks", 1, 2),
)


def read(results: Path) -> pd.DataFrame:
    """Return a row a run."""
    return pd.read_json(results / CELLS, lines=True)


def table(cells: pd.DataFrame, name: str) -> str:
    """Return mean ± standard deviation over the seeds after the last task, a row a method."""
    last = cells[cells["task"] == cells["task"].max()]
    body = [
        [str(method), *(score.show(runs[score.column]) for score in SCORES)]
        for method, runs in last.groupby("method", sort=False)
    ]
    return markdown_table([name, *(score.label for score in SCORES)], body)


def tables(results: Path) -> str:
    """Return a table for each stream in Markdown."""
    cells = read(results)
    kinds = (table(cells[cells["stream"] == kind], name) for kind, name in STREAMS.items())
    return "\n\n".join(kinds)


def facts(results: Path) -> Iterator[float]:
    """Yield no number beside those of the tables."""
    yield from ()


def picture(results: Path) -> Figure:
    """Draw accuracy on the earlier tasks after each task: a panel a stream, a line a method."""
    cells = read(results)
    figure = sheet(7.6, 3.4)
    panels = figure.subplots(1, len(STREAMS), sharey=True)
    for axes, (kind, name) in zip(panels, STREAMS.items(), strict=True):
        of_kind = cells[(cells["stream"] == kind) & (cells["task"] > 0)]
        for index, (method, runs) in enumerate(of_kind.groupby("method", sort=False)):
            means = 100 * runs.groupby("task")["old"].mean()
            color = COLORS[index % len(COLORS)]
            axes.plot(means.index + 1, means, "o-", color=color, label=literal(method), ms=3)
        axes.set(xlabel="Task", title=name, xticks=range(2, 6))
        axes.grid(alpha=0.3)
        open_frame(axes)
    panels[0].set_ylabel("Accuracy on earlier tasks, %")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right", fontsize=6)
    return figure
