"""The first run at ten seeds: the second table of docs/results/small-sets.md."""

from __future__ import annotations

from pathlib import Path

from fedbary.report.cells import ACCURACY, ECE_15, Metric
from fedbary.report.markup import markdown_table
from fedbary.study.table import read_table, result_rows

METRICS = (ACCURACY, Metric("nll", "NLL", decimals=4), ECE_15)


def tables(results: Path) -> str:
    """Return the table in Markdown."""
    runs = result_rows(read_table(results)).sort_values("seed")
    body = [
        [metric.label, *(metric.show([value]) for value in runs[metric.column])]
        for metric in METRICS
    ]
    return markdown_table(["seed", *map(str, runs["seed"])], body)
