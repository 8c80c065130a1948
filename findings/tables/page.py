"""Breast cancer at five clients: the table of docs/results/tables.md, of what `runs.py` wrote."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from fedbary.report.results import Metric
from findings import maker

BOUND = 0.01
"""The difference in NLL below which two sides are taken for equal."""

ACCURACY, NLL = Metric("accuracy", "accuracy %", 100, 1), Metric("nll", "NLL")
OTHERS = Metric("auroc", "AUROC %", 100, 1), Metric("sensitivity", "sensitivity %", 100, 1)


def read(results: Path) -> pd.DataFrame:
    """Return a row a split and method."""
    return pd.read_csv(results / "scores.csv").rename(columns={"split": "seed"})


def tables(results: Path) -> Iterator[str]:
    """Yield the scores, and how far each method is from the first."""
    rows = read(results)
    yield maker.table("", maker.by(rows, "method"), (ACCURACY, NLL, *OTHERS))
    first, *others = rows["method"].unique()
    pairs = [*((other, first) for other in others), ("linear, RKLB", "linear, FedAvg")]
    points = maker.pairs(rows, pairs, ACCURACY, "method")
    columns = [
        (maker.effect("accuracy, points")[0],
         lambda row: ACCURACY.difference(points[f"{row.first} − {row.second}"])),
        maker.effect(NLL), ("p, NLL", maker.P[1]), maker.same("p, equivalence", BOUND),
        maker.seen("seen from"),
    ]  # fmt: skip
    yield maker.table("pair", maker.pairs(rows, pairs, NLL, "method"), columns)


def picture(results: Path) -> maker.Figure:
    """Return the NLL of every split, a row a method, with the means."""
    figure, (axes,) = maker.panels(5.0, 2.0)
    methods = maker.by(read(results), "method")
    maker.draw_rows(axes, {name: own["nll"] for name, own in methods.items()})
    axes.set_xlabel("NLL")
    return figure
