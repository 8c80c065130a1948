"""Coefficients of federations: the tables of docs/results/statistics.md."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from findings import maker

FAMILIES = {"binomial": "logistic", "poisson": "Poisson", "multinomial": "7 classes", "cox": "Cox"}
RATES = {
    "once": "one round",
    "pooled": "pooled",
    "random": "Hartung-Knapp",
    "warned": "a line warns",
    "taken": "the interval to take",
}


def tables(results: Path) -> Iterator[str]:
    """Yield the errors by data, split and round, and the coverage."""
    cells, found = pd.read_json(results / "cells.jsonl", lines=True), {}
    for (name, split), own in maker.by(cells, "data", "split").items():
        by = own.set_index("rounds")
        last = by.loc[20]
        label = f"{name}, {FAMILIES[last['family']]}, {last['rows']:,} rows"
        errors = [f"{by.loc[k, 'error']:.0e}" for k in (1, 2, 3, 20)]
        steps = "–" if pd.isna(last["newton"]) else f"{last['newton']:.0f}"
        found[label, f"{last['sites']} {split}"] = [
            *errors,
            f"{last['std_error']:.0e}",
            f"{last['taken']:.0f}",
            steps,
            f"{last['seconds']:.0f}",
        ]
    heads = ["round 1 = one round", "round 2", "round 3", "last round", "standard errors, last"]
    heads += ["rounds", "rounds by sums", "seconds"]
    yield maker.cells(("data", "sites"), heads, found)
    kinds = pd.read_json(results / "coverage.jsonl", lines=True)
    rates = {
        (row["sites"], row["differ"]): [f"{row[key]:.1f} %" for key in RATES]
        for _, row in kinds.iterrows()
    }
    yield maker.cells(("sites", "coefficients"), [*RATES.values()], rates)


def facts(results: Path) -> Iterator[float]:
    """Yield the slope, and the standard deviation of a rate of 95 % in points."""
    yield from (0.6, 100 * (0.95 * 0.05 / 1000) ** 0.5)
