"""Heads on pretrained features in other conditions: a table of docs/results/pretrained.md."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from fedbary.report.cells import NLL
from fedbary.report.differences import differences
from fedbary.report.markup import markdown_table
from fedbary.study.table import read_table
from findings._pairs import SEED
from findings.pretrained.page import read

CONDITIONS = {
    "Dirichlet 0.5": {"partition": "dirichlet", "alpha": 0.5},
    "one class a client": {"partition": "classes", "classes_per_client": 1},
    "100 clients, a fifth a round": {"clients": 100},
    "200 labels in all": {"train_fraction": 0.004},
    "50 labels in all": {"train_fraction": 0.001},
}
"""What differs from the first table, by its name on the page."""

SIDES = ["LDA", "sites", "FedAvg", "SCAFFOLD"]
PAIRS = [("LDA", "FedAvg"), ("LDA", "SCAFFOLD"), ("sites", "FedAvg"), ("sites", "SCAFFOLD")]


def of_condition(rows: pd.DataFrame, settings: dict[str, object]) -> pd.DataFrame:
    """Return the runs of one condition."""
    return rows[(rows[list(settings)] == pd.Series(settings)).all(axis=1)]


def tables(results: Path) -> str:
    """Return the scores by condition, the differences, and the chosen step sizes."""
    rows = read(results).assign(side=lambda found: found["kind"])
    scores, tests = [], []
    for name, settings in CONDITIONS.items():
        runs = of_condition(rows, settings)
        if runs.empty:
            continue
        by_side = {side: runs[runs["side"] == side] for side in SIDES}
        scores.append([name, *(_cell(each) for each in by_side.values())])
        found = {
            (row.first, row.second): NLL.difference(row)
            for row in differences(runs, PAIRS, [NLL], SEED).itertuples()
        }
        tests.append([name, *(found.get(pair, "–") for pair in PAIRS)])
    heads = ["LDA, 1 round", "Kronecker sites, 2", "FedAvg, 20", "SCAFFOLD, 20"]
    pairs = [f"{one} − {other}, NLL [95 %]" for one, other in PAIRS]
    return "\n\n".join(
        [
            markdown_table(["accuracy % / NLL", *heads], scores),
            markdown_table(["condition", *pairs], tests),
            _chosen(results / "choice"),
        ]
    )


def _cell(runs: pd.DataFrame) -> str:
    if runs.empty:
        return "–"
    return f"{100 * runs['accuracy'].mean():.2f} / {runs['nll'].mean():.3f}"


def _chosen(results: Path) -> str:
    """Return the NLL on validation data after the last round, by condition and step size."""
    table = read_table(results)
    last = table[table["round"] == table["rounds"]]
    body = []
    for name, settings in CONDITIONS.items():
        for kind in ("barycentre", "SCAFFOLD"):
            runs = of_condition(last, settings)
            mean = runs[runs["method"] == kind].groupby("lr")["nll"].mean()
            cells = ", ".join(f"{lr:g}: {nll:.4f}" for lr, nll in mean.items())
            if cells:
                body.append([name, "FedAvg" if kind == "barycentre" else kind, cells])
    return markdown_table(["condition", "side", "`lr`: NLL on validation data"], body)
