"""Five forward passes spent in several ways: a part of docs/results/when-it-pays.md."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from fedbary.report.cells import ACCURACY, Metric
from fedbary.report.markup import markdown_table
from findings._pairs import of_pair, tests_table
from findings.arms.page import AT_T, BOUND

METRICS = (
    AT_T,
    ACCURACY,
    Metric("auroc_entropy", "AUROC %, entropy", 100, 2, False),
    Metric("auroc_epistemic", "AUROC %, mutual information", 100, 2, False),
    Metric("kept_accuracy", "Accuracy %, a fifth referred", 100, 2, False),
    Metric("set_size", "classes in a 90 % set", decimals=2),
)
PAIRS = [
    ("five FedAvg", "one FedAvg"),
    ("five RKLB", "five FedAvg"),
    ("one RKLB", "one FedAvg"),
    ("five RKLB", "one RKLB"),
    ("FedBE", "five FedAvg"),
    ("SnapshotEnsemble", "five FedAvg"),
]
"""What is tested, by NLL at T; named before the runs."""


def read(results: Path) -> pd.DataFrame:
    """Return every row, with its way as the side."""
    table = pd.read_csv(results / "scores.csv.xz")
    return table.assign(side=table["way"])


def tables(results: Path) -> str:
    """Return the scores of each way, and the tests."""
    rows = read(results)
    ways = list(dict.fromkeys(rows["side"]))
    body = [[way, *(m.show(rows[rows["side"] == way][m.column]) for m in METRICS)] for way in ways]
    scores = markdown_table(["five passes", *(m.label for m in METRICS)], body)
    pairs = [pair for pair in PAIRS if set(pair) <= set(ways)]
    named = {f"{pair[0]} − {pair[1]}": of_pair(rows, pair, AT_T) for pair in pairs}
    return f"{scores}\n\n{tests_table('ways', AT_T, named, BOUND)}"
