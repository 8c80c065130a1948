"""Streams of five tasks: the tables and the picture of docs/results/stream.md, of `cells.py`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from fedbary.figures.looks import COLORS
from fedbary.figures.sheet import literal, open_frame, sheet
from fedbary.report.cells import Metric
from fedbary.report.markup import markdown_table
from findings.stream.cells import chosen

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CELLS, TRIED = "cells.csv.xz", "tried.csv.xz"
STREAMS = {
    "digits pairs": "digits, classes in pairs",
    "digits turns": "digits that turn",
    "fashion pairs": "Fashion-MNIST, classes in pairs",
    "fashion turns": "Fashion-MNIST that turns",
    "features pairs": "features, classes in pairs",
}
SCORES = (
    Metric("new", "the last task, %", 100, 1),
    Metric("old", "earlier tasks, %", 100, 1),
    Metric("nll", "NLL, all tasks", 1, 2),
)
SHOWN = (
    "lr", "local_epochs", "rounds", "kl_weight", "inference", "log_var_lr", "strength",
    "covariance", "prior_std",
)  # fmt: skip
"""The chosen settings that the tables show."""


def table(cells: pd.DataFrame, tried: pd.DataFrame, stream: str) -> str:
    """Return mean ± standard deviation over the seeds after the last task, a row a method."""
    last = cells[(cells["stream"] == stream) & (cells["task"] == cells["task"].max())]
    body = []
    for method, runs in last.groupby("method", sort=False):
        best = chosen(tried, stream, str(method), 1)
        held = json.loads(best[0]) if best else {}
        words = ", ".join(f"`{name}={held[name]}`" for name in SHOWN if name in held)
        scores = (score.show(runs[score.column]) for score in SCORES)
        body.append([str(method), *scores, words or "none"])
    head = [STREAMS[stream], *(score.label for score in SCORES), "chosen settings"]
    return markdown_table(head, body)


def tables(results: Path) -> str:
    """Return a table for each stream in Markdown."""
    cells, tried = (pd.read_csv(results / name) for name in (CELLS, TRIED))
    return "\n\n".join(table(cells, tried, stream) for stream in _measured(cells))


def _measured(cells: pd.DataFrame) -> list[str]:
    """Return the streams that have been measured."""
    return [stream for stream in STREAMS if stream in set(cells["stream"])]


def facts(results: Path) -> Iterator[float]:
    """Yield no number beside those of the tables."""
    yield from ()


def picture(results: Path) -> Figure:
    """Draw accuracy on the earlier tasks after each task: a panel a stream, a line a method."""
    cells = pd.read_csv(results / CELLS)
    streams = _measured(cells)
    columns = min(3, len(streams))
    rows = -(-len(streams) // columns)
    figure = sheet(2.0 + 2.8 * columns, 0.4 + 3.0 * rows)
    panels = figure.subplots(rows, columns, sharey=True, squeeze=False)
    for axes in panels.flat[len(streams) :]:
        axes.set_axis_off()
    methods = list(dict.fromkeys(cells["method"]))
    shown = {}
    for axes, stream in zip(panels.flat, streams, strict=False):
        of_stream = cells[(cells["stream"] == stream) & (cells["task"] > 0)]
        for method, runs in of_stream.groupby("method", sort=False):
            means = 100 * runs.groupby("task")["old"].mean()
            color = COLORS[methods.index(method) % len(COLORS)]
            axes.plot(means.index + 1, means, "o-", color=color, label=literal(method), ms=3)
        axes.set(title=STREAMS[stream], xticks=range(2, 6), xlabel="Task")
        axes.grid(alpha=0.3)
        open_frame(axes)
        shown |= dict(zip(*axes.get_legend_handles_labels()[::-1], strict=True))
    for axes in panels[:, 0]:
        axes.set_ylabel("Accuracy on earlier tasks, %")
    figure.legend(shown.values(), shown.keys(), loc="outside right", fontsize=6)
    return figure
