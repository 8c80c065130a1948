"""The scores of the last round by condition, n and method."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from fedbary.report.cells import Metric, marked
from fedbary.report.document import Document
from fedbary.report.results import Results, grouped

BEST = """**Bold** is the best mean of the whole table, <u>underlined</u> the best among the methods
    at the same n."""


def add_scores(
    results: Results, document: Document, metrics: Sequence[Metric], best: bool = True
) -> None:
    """Add a table for each condition: a row by n and method, a column for each metric.

    With `best` the best means are marked, as `BEST` says.
    """
    for condition, rows in grouped(results.last, "condition"):
        document.heading(condition, 3)
        document.table(*_table(results, rows, metrics, best))


def _table(
    results: Results, rows: pd.DataFrame, metrics: Sequence[Metric], best: bool
) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    cells = list(grouped(rows, "bayesian_layers", "arm"))
    header = ["n", "method", "runs" if results.by_split else "seeds"]
    columns = []
    for metric in (metric for metric in metrics if metric.column in rows):
        means = [metric.scale * runs[metric.column].mean(skipna=False) for _, runs in cells]
        shown = [metric.show(runs[metric.column]) for _, runs in cells]
        if best:
            shown = marked(metric, means, shown, [n for (n, _), _ in cells])
        header.append(metric.label)
        columns.append(shown)
    first = [[str(n), arm, str(len(runs))] for (n, arm), runs in cells]
    body = [[*row, *(column[index] for column in columns)] for index, row in enumerate(first)]
    return header, body
