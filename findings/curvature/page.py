"""Means by curvature: the tables of docs/results/curvature.md."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from fedbary.report.results import Metric
from findings import maker

PAIRS = (("curvature", "FedAvg"), ("curvature", "by size"), ("by size", "FedAvg"))
SCORES = (
    maker.AT_T, Metric("accuracy", "Accuracy %", 100, 2), Metric("temperature", "T", 1, 2),
)  # fmt: skip
STEPS = ["lr", "momentum", "lr_schedule"]
BOUND = 0.01
"""The bound of equivalence, in nats."""


def read(results: Path) -> pd.DataFrame:
    """Return the cells."""
    return pd.read_csv(results / "cells.csv")


def tables(results: Path) -> Iterator[str]:
    """Yield held-out scores by local epochs, test scores and differences, by condition."""
    cells = read(results)
    fresh = maker.where(cells, stage="fresh")
    tried = maker.where(cells, stage="choice")
    compared = list(maker.by(fresh, "condition"))
    head = ["best held-out NLL", "side"]
    epochs = sorted(tried["local_epochs"].unique())
    rows = {}
    for condition in compared:
        for side, own in maker.by(maker.where(tried, condition=condition), "side").items():
            means = own.groupby([*STEPS, "local_epochs"])["held_out"].mean()
            best = means.groupby("local_epochs").min()
            rows[condition, side] = [f"{best[count]:.3f}" for count in epochs]
    yield maker.cells(head, [f"{count:g} local epochs" for count in epochs], rows)
    scored = {}
    for (condition, side), own in maker.by(fresh, "condition", "side").items():
        first = own.iloc[0]
        steps = f"lr={first['lr']:g} momentum={first['momentum']:g} {first['lr_schedule']}"
        scored[condition, side, f"{steps}, {first['local_epochs']:g} epochs"] = own
    yield maker.table(["fresh seeds", "side", "setting"], scored, SCORES)
    found = {
        f"{condition}: {name}": row
        for condition in compared
        for name, row in maker.pairs(
            maker.where(fresh, condition=condition), PAIRS, maker.AT_T
        ).items()
    }
    yield maker.tests_table("pair", maker.AT_T, found, BOUND)
