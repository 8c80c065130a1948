"""Scores, the clients' own models and time against the number of Bayesian layers."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from fedbary.figures.comparison import lines_by_group
from fedbary.report.cells import FAIRNESS, Metric
from fedbary.report.document import Document
from fedbary.report.results import TOLD_APART, Results, grouped


def add_layers(
    results: Results, document: Document, name: str, metrics: Sequence[Metric], caption: str
) -> None:
    """Add metrics, fairness and the time of a round against n, if several n were run.

    Parameters
    ----------
    name, metrics, caption
        The file's name, the metrics and the caption of the first picture.
    """
    if not _shown(results):
        return
    document.heading("More Bayesian layers")
    _draw(results, document, name, metrics, caption)
    document.heading("Clients' own models, and time")
    document.text(
        """Fairness is measured on the clients' models as they leave for the server, each on the
        same examples as the global one: the mean weighted by what they hold, and the worst
        tenth of them."""
    )
    _draw(results, document, "fairness", FAIRNESS, "Both fairness measures against n.")
    _draw(
        results,
        document,
        "seconds",
        (Metric("seconds", "Seconds a round"),),
        """Median seconds of a round against n, evaluation of the global model included. Runs
        beside each other on one machine slow each other down, so compare with care.""",
    )


def _draw(
    results: Results, document: Document, name: str, metrics: Sequence[Metric], caption: str
) -> None:
    for rows in _shown(results):
        shown = [m for m in metrics if m.column in rows and rows[m.column].notna().any()]
        if shown:
            columns = [(metric.column, metric.label, metric.scale) for metric in shown]
            document.figure(name, lines_by_group(rows, columns), caption)


def _shown(results: Results) -> list[pd.DataFrame]:
    """Return the runs of each condition that has several n, and few enough methods to draw."""
    last = results.last
    last = last.assign(dataset=last["condition"], rule=last["arm"], n=last["bayesian_layers"])
    conditions = [rows for _, rows in grouped(last, "condition")]
    return [
        rows
        for rows in conditions
        if rows["n"].nunique() > 1 and rows["arm"].nunique() <= TOLD_APART
    ]
