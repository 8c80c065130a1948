"""Clients of several kinds: the tables and the picture of docs/results/groups.md."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from fedbary.report.results import Metric
from fedbary.scores.stats import corrected
from findings import maker

STREAMS = {"turned": "four turns", "labels": "two label maps"}
ACCURACY = Metric("accuracy", "own model, accuracy %", 100, 2)
NLL = Metric("nll", "own model, NLL", 1, 3)
COMMON = Metric("common accuracy", "global model, accuracy %", 100, 2)
GIVEN, FOUND = "groups given, RKLB", "groups found, RKLB"


def read(results: Path) -> pd.DataFrame:
    """Return a row a run that scores, with the step that was chosen, the rivals first."""
    rows = pd.read_json(results / "cells.jsonl.xz", lines=True)
    tried = rows[rows["choice"]].sort_values("nll").drop_duplicates(["stream", "method"])
    steps = tried.set_index(["stream", "method"])["lr"]
    like = zip(rows["stream"], rows["method"].replace(FOUND, GIVEN), strict=True)
    rows = rows[~rows["choice"] & (rows["lr"] == [steps[key] for key in like])]
    rows = rows.assign(side=rows["method"]).sort_values("method", kind="stable")
    return rows.sort_values("method", key=lambda e: e.str.contains("groups"), kind="stable")


def tables(results: Path) -> Iterator[str]:
    """Yield scores for each kind of difference, and given groups' less each other method's."""
    rows = read(results)
    for stream, name in STREAMS.items():
        own = maker.where(rows, stream=stream)
        yield maker.table(name, maker.by(own, "method"), (ACCURACY, NLL, COMMON))
    head = [f"{name}, {unit}" for name in STREAMS.values() for unit in ("points", "NLL")]
    body = {method: [row.metric.difference(row) for row in of_method]
            for method, of_method in _beside(rows).items()}  # fmt: skip
    yield maker.cells(f"{GIVEN}, less", head, body)


def _beside(rows: pd.DataFrame) -> dict[str, list]:
    """Return given groups' differences from each other method, by stream and score."""
    return {
        method: [maker.of_pair(maker.where(rows, stream=stream), (GIVEN, method), metric)
                 for stream in STREAMS for metric in (ACCURACY, NLL)]
        for method in rows["method"].unique() if method not in (GIVEN, FOUND)
    }  # fmt: skip


def facts(results: Path) -> Iterator[float]:
    """Yield Holm's p of the last table, and the least rate of ten right runs in ten at 95 %."""
    found = sum(_beside(read(results)).values(), [])
    yield from (*corrected([row.t_test for row in found]), 0.05**0.1)


def picture(results: Path) -> maker.Figure:
    """Draw each run's accuracy of the models that clients use: a panel a kind, a row a method."""
    rows = read(results)
    figure, panels = maker.panels(7.6, 3.4, 1, len(STREAMS), sharey=True)
    for axes, (stream, name) in zip(panels, STREAMS.items(), strict=True):
        own = maker.by(maker.where(rows, stream=stream), "method")
        maker.draw_rows(axes, {method: 100 * runs["accuracy"] for method, runs in own.items()})
        axes.set(xlabel="Accuracy of clients' models, %", title=name)
    return figure
