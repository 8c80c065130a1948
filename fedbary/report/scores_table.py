"""The scores of the last round by data set, n and rule, beside a paper's numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from fedbary.report.cells import Metric, marked
from fedbary.report.document import Document
from fedbary.report.markup import italic
from fedbary.report.published import published
from fedbary.report.results import Results, grouped, written

BEST = """**Bold** is the best mean of the whole table, <u>underlined</u> the best among the rules
    at the same n."""

PLACES = 2
"""Decimals of a paper's numbers."""


def add_scores(
    results: Results, document: Document, metrics: Sequence[Metric], best: bool = True
) -> None:
    """Add a table for each data set: a row by variant, n and rule, a column for each metric.

    With `best` the best means are marked, as `BEST` says.
    """
    for dataset, rows in grouped(results.last, "dataset"):
        document.heading(written(dataset), 3)
        document.table(*_table(results, dataset, rows, metrics, best))


def _table(
    results: Results, dataset: str, rows: pd.DataFrame, metrics: Sequence[Metric], best: bool
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
        if not metric.published:
            continue
        paper = [published(dataset, n, rule, metric.published) for _, n, rule, _ in cells]
        if np.isfinite([mean for mean, _ in paper]).any():
            header += [italic("paper"), italic("Δ")]
            columns.append([f"{m:.{PLACES}f} ± {s:.{PLACES}f}" if m == m else "" for m, s in paper])
            columns.append(
                [
                    f"{ours - theirs:+.{PLACES}f}" if theirs == theirs else ""
                    for ours, (theirs, _) in zip(means, paper, strict=True)
                ]
            )
    first = [[str(n), rule, str(len(runs))] for _, n, rule, runs in cells]
    if results.varied:
        header = [*results.variant_header, *header]
        first = [[cell[0], *row] for cell, row in zip(cells, first, strict=True)]
    body = [[*row, *(column[index] for column in columns)] for index, row in enumerate(first)]
    return header, body
