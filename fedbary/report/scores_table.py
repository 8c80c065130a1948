"""The scores of the last round by data set, n and rule."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from fedbary.report.cells import Metric, marked
from fedbary.report.document import Document
from fedbary.report.results import Results, grouped, written

BEST = """**Bold** is the best mean of the whole table, <u>underlined</u> the best among the rules
    at the same n."""


def add_scores(
    results: Results, document: Document, metrics: Sequence[Metric], best: bool = True
) -> None:
    """Add a table for each data set: a row by variant, n and rule, a column for each metric.

    With `best` the best means are marked, as `BEST` says.
    """
    for dataset, rows in grouped(results.last, "dataset"):
        document.heading(written(dataset), 3)
        document.table(*_table(results, rows, metrics, best))


def _table(
    results: Results, rows: pd.DataFrame, metrics: Sequence[Metric], best: bool
) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    cells = [
        (variant, n, rule, runs)
        for (variant, n), group in grouped(rows, "variant", "bayesian_layers")
        for rule, runs in grouped(group, "rule")
    ]
    header = ["n", "rule", "runs" if results.by_split else "seeds"]
    columns = []
    for metric in metrics:
        means = [metric.scale * runs[metric.column].mean(skipna=False) for *_, runs in cells]
        shown = [metric.show(runs[metric.column]) for *_, runs in cells]
        if best:
            shown = marked(metric, means, shown, [(variant, n) for variant, n, *_ in cells])
        header.append(metric.label)
        columns.append(shown)
    first = [[str(n), rule, str(len(runs))] for _, n, rule, runs in cells]
    if results.varied:
        header = [*results.variant_header, *header]
        first = [[cell[0], *row] for cell, row in zip(cells, first, strict=True)]
    body = [[*row, *(column[index] for column in columns)] for index, row in enumerate(first)]
    return header, body
