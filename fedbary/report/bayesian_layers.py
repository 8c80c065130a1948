"""Scores, the clients' own models and time against the number of Bayesian layers."""

from __future__ import annotations

from collections.abc import Sequence

from fedbary.figures.comparison import lines_by_group
from fedbary.report.cells import FAIRNESS, Metric
from fedbary.report.document import Document
from fedbary.report.results import Results, grouped, written


def add_layers(
    results: Results, document: Document, name: str, metrics: Sequence[Metric], caption: str
) -> None:
    """Add metrics, fairness and the time of a round against n, if several n were run.

    Parameters
    ----------
    name, metrics, caption
        The file's name, the metrics and the caption of the first picture.
    """
    if results.last.groupby("variant")["bayesian_layers"].nunique().max() < 2:
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
    last = results.last
    shown = [m for m in metrics if m.column in last and last[m.column].notna().any()]
    for number, (variant, rows) in enumerate(grouped(last, "variant")):
        if shown and rows["bayesian_layers"].nunique() > 1:
            data = rows.assign(dataset=rows["dataset"].map(written), n=rows["bayesian_layers"])
            columns = [(metric.column, metric.label, metric.scale) for metric in shown]
            figure = lines_by_group(data, columns)
            suffix = f"-{number}" if results.varied else ""
            document.figure(name + suffix, figure, f"{caption} {variant}")
