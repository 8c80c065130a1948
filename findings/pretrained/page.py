"""Heads on a pretrained network's features: the tables of docs/results/pretrained.md."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from fedbary.report.cells import ACCURACY, ECE_15, NLL
from fedbary.report.differences import differences, p_value
from fedbary.report.markup import markdown_table
from fedbary.study.table import read_table, result_rows
from findings._pairs import SEED

SIDES = {
    "LDA": "LDA by sums",
    "Ridge": "Ridge by sums",
    "sites": "PVI, Kronecker sites",
    "FedAvg 1": "FedAvg",
    "FedAvg 5": "FedAvg",
    "FedAvg 20": "FedAvg",
    "one place": "all examples in one place",
}
"""Each side of the table, and what the page calls it."""

PAIRS = [
    ("LDA", "FedAvg 5"),
    ("LDA", "FedAvg 20"),
    ("LDA", "one place"),
    ("sites", "FedAvg 20"),
    ("sites", "one place"),
]
"""What is tested, by NLL."""


def read(results: Path) -> pd.DataFrame:
    """Return the result of every run, `side` being its method, of FedAvg with its rounds."""
    rows = result_rows(read_table(results))
    side = rows["method"].where(
        rows["method"] != "barycentre", "FedAvg " + rows["rounds"].astype(str)
    )
    side = side.where(rows["method"] != "PVI", "sites")
    return rows.assign(side=side.where(rows["clients"] > 1, "one place"))


def tables(results: Path) -> str:
    """Return the scores, the tests, and what was chosen, in Markdown."""
    rows = read(results)
    body = []
    for side, name in SIDES.items():
        runs = rows[rows["side"] == side]
        sent = (runs["bytes.up"] * runs["rounds"]).mean() / 1000
        alone = side == "one place"
        told = ["–", "–"] if alone else [f"{runs['rounds'].iloc[0]}", f"{sent:,.0f}"]
        scores = [metric.show(runs[metric.column]) for metric in (ACCURACY, NLL, ECE_15)]
        body.append([name, *told, *scores])
    head = ["head", "rounds", "KB up a client", ACCURACY.label, NLL.label, ECE_15.label]
    tested = [
        [_named(row.first, row.second), NLL.difference(row), p_value(row.t_test), p_value(row.holm)]
        for row in differences(rows, PAIRS, [NLL], SEED).itertuples()
    ]
    second = markdown_table(["pair", "NLL [95 %]", "p, t-test", "p, Holm"], tested)
    return "\n\n".join([markdown_table(head, body), second, _chosen(results / "choice")])


def _chosen(results: Path) -> str:
    """Return the NLL on validation data by setting and rounds."""
    table = read_table(results)
    of_fedavg = table[table["method"] != "PVI"]
    mean = of_fedavg.groupby(["lr", "weight_decay", "round"])["nll"].mean()
    body = [
        [f"{lr:g}", f"{decay:g}", *(f"{mean[lr, decay, each]:.4f}" for each in (1, 5, 20))]
        for lr, decay in sorted({key[:2] for key in mean.index})
    ]
    return markdown_table(["`lr`", "`weight_decay`", "round 1", "round 5", "round 20"], body)


def _named(one: str, other: str) -> str:
    names = {"sites": "Kronecker sites"}
    return f"{names.get(one, one)} less {names.get(other, other)}"
