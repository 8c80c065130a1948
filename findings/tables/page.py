"""Breast cancer at five clients: the table of docs/results/tables.md, of what `runs.py` wrote."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from fedbary.report.cells import Metric
from findings._pairs import scores_table

SCORES = "scores.csv"
METRICS = (
    Metric("accuracy", "accuracy %", 100, 1),
    Metric("nll", "NLL"),
    Metric("auroc", "AUROC %", 100, 1),
    Metric("sensitivity", "sensitivity %", 100, 1),
)


def tables(results: Path) -> str:
    """Return the table in Markdown."""
    rows = pd.read_csv(results / SCORES)
    return scores_table("", dict(list(rows.groupby("method", sort=False))), METRICS)
