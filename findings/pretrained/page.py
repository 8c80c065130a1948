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
    "FedAvg 1": "FedAvg",
    "FedAvg 5": "FedAvg",
    "FedAvg 20": "FedAvg",
    "PVI": "all examples in one place",
}
"""Each side of the table, and what the page calls it."""

PAIRS = [("LDA", "FedAvg 5"), ("LDA", "FedAvg 20"), ("LDA", "PVI"), ("LDA", "Ridge")]
"""What is tested, by NLL."""


def read(results: Path) -> pd.DataFrame:
    """Return the result of every run, `side` being its method, of FedAvg with its rounds."""
    rows = result_rows(read_table(results))
    with_rounds = "FedAvg " + rows["rounds"].astype(str)
    return rows.assign(side=rows["method"].where(rows["method"] != "barycentre", with_rounds))


def tables(results: Path) -> str:
    """Return the scores and the tests in Markdown."""
    rows = read(results)
    body = []
    for side, name in SIDES.items():
        runs = rows[rows["side"] == side]
        sent = (runs["bytes.up"] * runs["rounds"] / runs["clients"]).mean() / 1000
        told = "–" if side == "PVI" else f"{runs['rounds'].iloc[0]}"
        kilobytes = "–" if side == "PVI" else f"{sent:,.0f}"
        scores = [metric.show(runs[metric.column]) for metric in (ACCURACY, NLL, ECE_15)]
        body.append([name, told, kilobytes, *scores])
    head = ["head", "rounds", "KB up a client", ACCURACY.label, NLL.label, ECE_15.label]
    tested = [
        [_named(row.first, row.second), NLL.difference(row), p_value(row.t_test), p_value(row.holm)]
        for row in differences(rows, PAIRS, [NLL], SEED).itertuples()
    ]
    second = markdown_table(["pair", "NLL [95 %]", "p, t-test", "p, Holm"], tested)
    return markdown_table(head, body) + "\n\n" + second


def _named(one: str, other: str) -> str:
    names = {"PVI": "one place", "FedAvg 5": "FedAvg, 5 rounds", "FedAvg 20": "FedAvg, 20 rounds"}
    return f"{names.get(one, one)} less {names.get(other, other)}"
