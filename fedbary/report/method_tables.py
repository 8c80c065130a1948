"""Methods side by side: accuracy, calibration, cost, and advice."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from fedbary.aggregation import RULES
from fedbary.report.cells import ACCURACY, DETECTION, ECE_15, ECE_100, NLL, Metric, marked
from fedbary.report.differences import differences, p_value
from fedbary.report.document import Document
from fedbary.report.own_models import add_own_models
from fedbary.report.results import PLAIN, REPEATS, Results, grouped

DECIDED = 0.05
"""The p-value, corrected for all comparisons of a condition, below which methods differ."""

BRIER = Metric("brier", "Brier")
PERSONAL = (
    Metric("personal.held_out.personal.weighted_accuracy", "own models, own data %", 100, 2),
    Metric("personal.held_out.personal.worst10_accuracy", "… worst tenth %", 100, 2),
    Metric("personal.held_out.global.weighted_accuracy", "global, own data %", 100, 2),
)
FOREIGN = replace(DETECTION[0], label="OOD AUROC %")
OF_IMAGES = (ACCURACY, NLL, ECE_15, ECE_100, BRIER, FOREIGN)

WISHES = {
    "nll": "probabilities that can be trusted case by case (NLL)",
    "accuracy": "the most right answers (accuracy)",
    "ece_15": "confidence that equals accuracy (ECE)",
    "auroc": "ranking by probability (AUROC)",
    "rmse": "numbers near the truth (RMSE)",
    "crps": "a distribution near the truth (CRPS)",
    FOREIGN.column: "telling foreign inputs (AUROC of the entropy)",
    PERSONAL[0].column: "a model of each client's own",
}
"""Quantity that a column measures."""


def several(results: Results) -> bool:
    """Return whether there are methods beside rules for the barycentre."""
    return not set(results.last["rule"]) <= set(RULES)


def add_methods(
    results: Results, document: Document, shown: Sequence[Metric], compared: Sequence[Metric]
) -> None:
    """Add every method by NLL, the differences from plain FedAvg, the costs, and advice.

    Parameters
    ----------
    shown, compared
        The metrics of the ranking, and those in which methods are compared with plain FedAvg, the
        NLL first.
    """
    document.heading("Methods side by side")
    document.text(
        """By the NLL of the global model, the best first: mean ± standard deviation. *n* is how
        many layers are Gaussian while clients train. **Bold** is the best mean of a column."""
    )
    for condition, rows in grouped(results.last, "condition"):
        document.heading(condition, 3)
        document.table(*_ranked(rows, shown))
        if PLAIN in set(rows["name"]):
            _add_differences(results, document, rows, compared)
        document.heading(f"{condition}: clients and costs", 3)
        document.text(
            """Bytes are of the arrays that a client is sent, and replies with, in a round of
            training; seconds are of the whole round in one process, evaluation included. Own
            models, if there are any, are those that clients keep where the method gives them one,
            on what each client holds out."""
        )
        document.table(*_ranked(rows, (*PERSONAL, *_costs(rows)), best=False))
        add_own_models(document, _by_nll(rows))
        _add_advice(document, rows, shown)


def _by_nll(rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Return each method's runs, those of the lowest mean NLL first; unscored ones come last."""
    named = list(grouped(rows, "name"))
    return sorted(named, key=lambda each: each[1][NLL.column].fillna(math.inf).mean())


def _costs(rows: pd.DataFrame) -> tuple[Metric, ...]:
    """Return a method's cost; bytes in kB if no client sends a tenth of a megabyte."""
    most = rows["bytes.up"].max() if "bytes.up" in rows else math.nan
    unit, scale = ("kB", 1e-3) if most < 1e5 else ("MB", 1e-6)
    return (
        Metric("bytes.down", f"down, {unit}", scale, 2),
        Metric("bytes.up", f"up, {unit}", scale, 2),
        Metric("seconds", "s a round", 1, 1),
    )


def _ranked(
    rows: pd.DataFrame, metrics: Sequence[Metric], best: bool = True
) -> tuple[list[str], list[list[str]]]:
    methods = _by_nll(rows)
    known = [metric for metric in metrics if metric.column in rows and rows[metric.column].any()]
    columns = []
    for metric in known:
        values = [runs[metric.column] for _, runs in methods]
        shown = [metric.show(value) for value in values]
        if best:
            means = [metric.scale * value.mean(skipna=False) for value in values]
            shown = marked(metric, means, shown, range(len(means)))
        columns.append(shown)
    first = [
        [name, "/".join(map(str, sorted(runs["bayesian_layers"].unique()))), str(len(runs))]
        for name, runs in methods
    ]
    body = [[*row, *(column[k] for column in columns)] for k, row in enumerate(first)]
    return ["method", "n", "runs", *(metric.label for metric in known)], body


def beside_plain(rows: pd.DataFrame, metrics: Sequence[Metric]) -> pd.DataFrame:
    """Return every method's difference from `PLAIN` over the repeats of both, if two or more.

    A row a method and metric, as from `differences`, corrected for the number of methods.
    """
    names = [name for name, _ in _by_nll(rows) if name != PLAIN]
    repeats = [key for key in REPEATS if key in rows]
    sides = [(name, PLAIN) for name in names]
    return differences(rows.assign(side=rows["name"]), sides, metrics, repeats, least=2)


def _add_differences(
    results: Results, document: Document, rows: pd.DataFrame, metrics: Sequence[Metric]
) -> None:
    metrics = [metric for metric in metrics if metric.column in rows]
    found = beside_plain(rows, metrics)
    told = {(row.metric, row.first): row for row in found.itertuples()}
    if not any(metric == NLL for metric, _ in told):
        return
    document.text(
        """Minus {plain}: mean difference over {repeats} with its 95 % interval, and the p-value of
        the paired t-test, corrected for all these methods (Holm). {splits}""",
        plain=PLAIN,
        repeats=results.repeats,
        splits=_OF_SPLITS if results.by_split else "",
    )
    body = []
    for name in [name for metric, name in told if metric == NLL]:
        of_it = [told.get((metric, name)) for metric in metrics]
        cells = [
            (row.metric.difference(row), p_value(row.holm)) if row else ("–", "–") for row in of_it
        ]
        body.append([name, *itertools.chain(*cells)])
    header = [cell for metric in metrics for cell in (f"Δ {metric.label} [95 %]", "p")]
    document.table(["method", *header], body)


_OF_SPLITS = """The splits of a data set share most of their rows, so they are not independent:
    intervals are too narrow and p-values too small."""


def _add_advice(document: Document, rows: pd.DataFrame, shown: Sequence[Metric]) -> None:
    """Say which method is best in each score, and which differ significantly from plain FedAvg."""
    if rows["name"].nunique() < 2:
        return
    for metric in (*shown, PERSONAL[0]):
        wish = WISHES.get(metric.column)
        if not wish or metric.column not in rows or not rows[metric.column].notna().any():
            continue
        means = pd.Series({n: runs[metric.column].mean(skipna=False) for n, runs in _by_nll(rows)})
        means = metric.scale * means.dropna().sort_values(ascending=metric.lower_is_better)
        first = ", ".join(f"{n} {v:.{metric.decimals}f}" for n, v in means.iloc[:3].items())
        document.text("For {wish}: {first}.", wish=wish, first=first)
    if PLAIN not in set(rows["name"]):
        return
    found = beside_plain(rows, [NLL]).itertuples()
    sure_of = [row for row in found if row.holm < DECIDED]
    for better, word in ((True, "lower"), (False, "higher")):
        sure = [row.first for row in sure_of if (row.mean < 0) == better]
        document.text(
            "NLL {word} than {plain}'s beyond chance (corrected p < {decided}): {sure}.",
            word=word, plain=PLAIN, decided=DECIDED, sure=", ".join(sure) or "no method",
        )  # fmt: skip
