"""Streams of five tasks: the tables and the picture of docs/results/stream.md."""

import json
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from fedbary.figures.sheet import COLORS, literal
from fedbary.report.results import Metric
from findings import maker

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
SHOWN = ("lr", "local_epochs", "rounds", "kl_weight", "inference", "log_var_lr", "strength",
         "covariance", "prior_std")  # fmt: skip
"""The chosen settings that the tables show."""


def read(results: Path) -> dict[str, pd.DataFrame]:
    """Return the cells of each stream."""
    found = maker.by(pd.read_csv(results / "cells.csv.xz"), "stream")
    return {stream: found[stream] for stream in STREAMS if stream in found}


def chosen(tried: pd.DataFrame) -> dict[tuple[str, str], str]:
    """Return each stream's and method's settings of the least mean NLL on the most seeds."""
    by = tried.groupby(["stream", "method", "settings"], sort=False)["nll"].agg(["count", "mean"])
    ranked = by.sort_values(["count", "mean"], ascending=[True, False]).index
    return {(stream, method): settings for stream, method, settings in ranked}


def tables(results: Path) -> Iterator[str]:
    """Yield mean ± standard deviation over the seeds after the last task, by stream and method."""
    settings = chosen(pd.read_csv(results / "tried.csv.xz"))

    def words(runs: pd.DataFrame) -> str:
        own = json.loads(settings.get((runs["stream"].iloc[0], runs["method"].iloc[0]), "{}"))
        return ", ".join(f"`{name}={own[name]}`" for name in SHOWN if name in own) or "none"

    for stream, cells in read(results).items():
        last = maker.by(cells[cells["task"] == cells["task"].max()], "method")
        yield maker.table(STREAMS[stream], last, [*SCORES, ("chosen settings", words)])


def picture(results: Path) -> maker.Figure:
    """Draw accuracy on the earlier tasks after each task: a panel a stream, a line a method."""
    streams = read(results)
    figure, panels = maker.panels(10.4, 6.4, 2, 3, sharey=True)
    colours = dict(zip(dict.fromkeys(pd.concat(streams.values())["method"]), COLORS, strict=False))
    for axes, (stream, cells) in zip(panels, streams.items(), strict=False):
        for method, runs in maker.by(cells[cells["task"] > 0], "method").items():
            look = {"color": colours[method], "fmt": "o-", "label": literal(method)}
            maker.course(axes, runs["task"] + 1, 100 * runs["old"], **look)
        axes.set(title=STREAMS[stream], xticks=range(2, 6), xlabel="Task")
        axes.set_ylabel("Accuracy on earlier tasks, %")
    for axes in panels[len(streams) :]:
        axes.set_axis_off()
    maker.legend_below(figure, 4)
    return figure
