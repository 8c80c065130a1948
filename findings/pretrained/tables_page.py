"""Heads by sums and sites on two tables: a table of docs/results/pretrained.md."""

from __future__ import annotations

from pathlib import Path

from fedbary.report.cells import ACCURACY, NLL
from fedbary.report.markup import markdown_table
from findings.pretrained.page import read

SIDES = {"LDA": "LDA, 1 round", "sites": "full sites, 2", "FedAvg": "FedAvg, 20"}
SIDES |= {"SCAFFOLD": "SCAFFOLD, 20", "one place": "all rows in one place"}
NAMES = {"breast_cancer": "breast cancer", "wine-quality-red": "grade of red wine"}


def tables(results: Path) -> str:
    """Return accuracy and NLL by table and side."""
    rows = read(results)
    body = []
    for dataset, name in NAMES.items():
        for metric in (ACCURACY, NLL):
            of_it = rows[rows["dataset"] == dataset].groupby("kind")[metric.column]
            cells = (metric.show(of_it.get_group(side)) for side in SIDES)
            body.append([name, metric.label, *cells])
    return markdown_table(["table", "score", *SIDES.values()], body)
