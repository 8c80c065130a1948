"""What the papers' tables at full length would take: a table of docs/results/protocol.md.

A run's hours are those of the two runs that were made, times what images, rounds and methods cost
in shorter runs beside one another.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from fedbary.report.markup import markdown_table
from fedbary.study.table import read_table, with_methods

IMAGES = {"fashionmnist": 60_000, "cifar10": 50_000, "svhn": 73_257}
NAMES = {"fashionmnist": "Fashion-MNIST", "cifar10": "CIFAR-10", "svhn": "SVHN"}
SEEDS = 3
GAUSSIAN = 15
"""Runs of a seed in Table 1 with Gaussian layers: five rules, three numbers of layers."""

CORES = 2
GOAL = 1 / 6
"""Hours that a run may take on a GPU: our goal, not a measurement."""


def seconds(folder: Path) -> pd.Series:
    """Return the median seconds of a run by data set, rule and number of Gaussian layers."""
    rows = with_methods(read_table(folder).copy())
    by = ["dataset", "rule", "bayesian_layers"]
    return rows.groupby([*by, "run"])["seconds"].sum().groupby(level=by).median()


def hours(results: Path) -> dict[tuple[str, str], float]:
    """Return the hours of a run on one busy core, by data set and method."""
    made, short = seconds(results) / 3600, seconds(results / "short")
    methods = seconds(results.parent / "methods")["fashionmnist"].droplevel(1)
    arms = short["cifar10"].index
    dearer = (short["cifar10"] / short["fashionmnist"].loc[arms]).median()
    found = {}
    for dataset, images in IMAGES.items():
        factor = 1.0
        if dataset != "fashionmnist":
            factor = dearer * images / IMAGES["cifar10"]
        for rule, layers in (("FedAvg", 0), ("RKLB", 3)):
            found[dataset, rule] = factor * made["fashionmnist", rule, layers]
        for method, rounds in (("pFedBayes", 1), ("pFedVem", 2)):
            ratio = rounds * methods[method] / methods["RKLB"]
            found[dataset, method] = ratio * found[dataset, "RKLB"]
    return found


def rows(results: Path) -> Iterator[tuple[str, str, int, float]]:
    """Yield table, data set, number of runs, and the hours of all on one core."""
    every = hours(results)
    for dataset in NAMES:
        one = every[dataset, "FedAvg"] + GAUSSIAN * every[dataset, "RKLB"]
        yield "Table 1", dataset, SEEDS * (1 + GAUSSIAN), SEEDS * one
    for dataset in NAMES:
        one = every[dataset, "pFedBayes"] + every[dataset, "pFedVem"]
        yield "Table IV", dataset, SEEDS * 2, SEEDS * one


def tables(results: Path) -> str:
    """Return runs and hours of each table and data set."""
    body = [
        [table, NAMES[dataset], str(runs), f"{time / CORES:.0f}", f"{runs * GOAL:.0f}"]
        for table, dataset, runs, time in rows(results)
    ]
    head = ["table", "data set", "runs", "hours on two cores", "hours on a GPU, at our goal"]
    return markdown_table(head, body)


def facts(results: Path) -> Iterator[float]:
    """Yield the hours of a run, and what CIFAR-10 costs beside Fashion-MNIST."""
    every = hours(results)
    yield from every.values()
    yield every["cifar10", "FedAvg"] / every["fashionmnist", "FedAvg"]
