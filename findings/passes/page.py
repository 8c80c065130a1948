"""Five forward passes spent in several ways: a part of docs/results/when-it-pays.md."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from fedbary.report.cells import ACCURACY, Metric
from fedbary.report.differences import differences
from fedbary.report.markup import bold, markdown_table
from fedbary.scores.stats import corrected
from findings._pairs import SEED, of_pair, tests_table
from findings.arms.page import AT_T, BOUND

METRICS = (
    AT_T,
    ACCURACY,
    Metric("auroc_entropy", "AUROC %, entropy", 100, 2),
    Metric("auroc_epistemic", "AUROC %, mutual information", 100, 2),
    Metric("kept_accuracy", "Accuracy %, a fifth referred", 100, 2),
    Metric("set_size", "classes in a 90 % set", decimals=2),
)
PAIRS = [
    ("five FedAvg", "one FedAvg"),
    ("five RKLB", "five FedAvg"),
    ("one RKLB", "one FedAvg"),
    ("five RKLB", "one RKLB"),
    ("FedBE", "five FedAvg"),
]
"""What is tested, by NLL at T; named before the runs."""

ALSO, LEVEL = METRICS[1:], 0.05
"""Scores that are compared beside it, and the level of their tests, which Holm corrects for all."""


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
    named = {f"{pair[0]} − {pair[1]}": of_pair(rows, pair, AT_T) for pair in PAIRS}
    return f"{scores}\n\n{tests_table('ways', AT_T, named, BOUND)}\n\n{_also(rows)}"


def facts(results: Path) -> list[float]:
    """Return by how many points mutual information detects worse than the entropy, by way."""
    means = read(results).groupby("side")[["auroc_entropy", "auroc_epistemic"]].mean()
    return list(100 * (means["auroc_entropy"] - means["auroc_epistemic"]).dropna())


def _also(rows: pd.DataFrame) -> str:
    """Return the differences in the other scores, those that stand by Holm in bold."""
    found = differences(rows, PAIRS, ALSO, SEED)
    cells = {}
    for row, p in zip(found.itertuples(), corrected(found["t_test"].tolist()), strict=True):
        text = row.metric.difference(row)
        cells[row.first, row.second, row.metric.column] = bold(text) if p < LEVEL else text
    body = [
        [f"{pair[0]} − {pair[1]}", *(cells.get((*pair, metric.column), "–") for metric in ALSO)]
        for pair in PAIRS
    ]
    return markdown_table(["ways [95 %]", *(metric.label for metric in ALSO)], body)
