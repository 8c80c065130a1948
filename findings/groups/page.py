"""Clients of several kinds: the tables and the picture of docs/results/groups.md, of `cells.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from fedbary.figures.looks import COLORS
from fedbary.figures.sheet import literal, open_frame, sheet
from fedbary.report.cells import Metric
from fedbary.report.markup import markdown_table
from fedbary.scores.stats import corrected
from findings._pairs import of_pair, scores_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STREAMS = {"turned": "four turns", "labels": "two label maps"}
ACCURACY = Metric("accuracy", "own model, accuracy %", 100, 2)
NLL = Metric("nll", "own model, NLL", 1, 3)
COMMON = Metric("common accuracy", "global model, accuracy %", 100, 2)
GIVEN, FOUND = "groups given, RKLB", "groups found, RKLB"


def read(results: Path) -> pd.DataFrame:
    """Return a row a run that scores, with the step that was chosen."""
    rows = pd.read_json(results / "cells.jsonl", lines=True)
    tried = rows[rows["choice"]].sort_values("nll").drop_duplicates(["stream", "method"])
    steps = tried.set_index(["stream", "method"])["lr"]
    like = zip(rows["stream"], rows["method"].replace(FOUND, GIVEN), strict=True)
    return rows[~rows["choice"] & (rows["lr"] == [steps[key] for key in like])]


def of_stream(rows: pd.DataFrame, stream: str) -> dict[str, pd.DataFrame]:
    """Return the runs of each method, the rivals first."""
    held = dict(list(rows[rows["stream"] == stream].groupby("method")))
    return {method: held[method] for method in sorted(held, key=lambda name: "groups" in name)}


def tables(results: Path) -> str:
    """Return a table of scores for each kind of difference, then one of differences."""
    rows, metrics = read(results), (ACCURACY, NLL, COMMON)
    made = [scores_table(name, of_stream(rows, s), metrics) for s, name in STREAMS.items()]
    return "\n\n".join([*made, differences(rows)])


def differences(rows: pd.DataFrame) -> str:
    """Return given groups' scores less each other method's, with 95 % intervals over seeds."""
    head, body = [f"{GIVEN}, less"], []
    for name in STREAMS.values():
        head += [f"{name}, points", f"{name}, NLL"]
    for method in of_stream(rows, "turned"):
        if method not in (GIVEN, FOUND):
            body.append([method])
            for stream in STREAMS:
                own = rows[rows["stream"] == stream].assign(side=lambda e: e["method"])
                for metric in (ACCURACY, NLL):
                    found = of_pair(own, (GIVEN, method), metric)
                    shown = (f"{x:+.{metric.decimals}f}" for x in (found.low, found.high))
                    interval = ", ".join(shown)
                    body[-1].append(f"{found.mean:+.{metric.decimals}f} [{interval}]")
    return markdown_table(head, body)


def facts(results: Path) -> Iterator[float]:
    """Yield Holm's p of the last table, and the least rate of ten right runs in ten at 95 %."""
    rows = read(results)
    sides = [own.assign(side=own["method"]) for _, own in rows.groupby("stream")]
    tests = [
        of_pair(own, (GIVEN, method), metric).t_test
        for own in sides
        for method in own["side"].unique()
        if method not in (GIVEN, FOUND)
        for metric in (ACCURACY, NLL)
    ]
    yield from (*corrected(tests), 0.05**0.1)


def picture(results: Path) -> Figure:
    """Draw each run's accuracy of the models that clients use: a panel a kind, a row a method."""
    rows, figure = read(results), sheet(7.6, 3.4)
    panels = figure.subplots(1, len(STREAMS), sharey=True)
    for axes, (stream, name) in zip(panels, STREAMS.items(), strict=True):
        found = of_stream(rows, stream)
        for row, runs in enumerate(found.values()):
            values = 100 * runs["accuracy"]
            axes.plot(values, [row] * len(values), "o", color=COLORS[row % len(COLORS)], ms=4)
        axes.set_yticks(range(len(found)), [literal(method) for method in found])
        axes.set(xlabel="Accuracy of clients' models, %", title=name)
        axes.grid(axis="x", alpha=0.3)
        open_frame(axes)
    panels[0].invert_yaxis()
    return figure
