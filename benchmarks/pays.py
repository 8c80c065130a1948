"""Where Gaussian weights pay: RKLB beside FedAvg, each with the clients' temperature, by condition.

It prints the tables of docs/results/pays.md from the results of `experiments/pays.yaml`, and draws
`picture.png` beside them.

    python -m benchmarks.pays results/pays
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from benchmarks import _page
from benchmarks._pairs import better, by_seed, compared, difference, probability, table
from fedbary.figures.sheet import sheet
from fedbary.report.cells import ACCURACY, DETECTION, ECE_15, NLL, Metric
from fedbary.report.methods import BRIER, corrected
from fedbary.scores.stats import Paired
from fedbary.study.table import read_table, result_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CONDITIONS: Mapping[str, Callable[[pd.DataFrame], pd.Series]] = {
    "twenty rounds": lambda t: (t.clients == 10) & (t.rounds == 20) & (t.alpha == 0.5),
    "five rounds": lambda t: t.rounds == 5,
    "label skew, Dirichlet 0.1": lambda t: t.alpha == 0.1,
    "fifty small clients": lambda t: t.clients == 50,
    "all data in one place": lambda t: t.clients == 1,
}
"""Every condition, and which runs of the table are of it."""

KINDS = ("blur", "noise", "contrast")
STRENGTHS = range(1, 6)
REJECTED = Metric("rejection.0.2", "accuracy %, a fifth passed on", 100, 2, False)
FOREIGN = replace(DETECTION[0], label="OOD AUROC %")
CORRUPTED = tuple(
    metric
    for kind in KINDS
    for metric in (
        Metric(f"corrupted.{kind}.accuracy", f"{kind}: accuracy %", 100, 2, False),
        Metric(f"corrupted.{kind}.nll", f"{kind}: NLL"),
    )
)
ADDED = 5
"""The first of the seeds that were added where the others had seen RKLB ahead."""

METRICS = (ACCURACY, NLL, ECE_15, BRIER, REJECTED, FOREIGN, *CORRUPTED)
UNTEMPERED = (NLL, ECE_15, BRIER)
DRAWN = (ACCURACY, NLL, ECE_15, FOREIGN)


def read(results: Path) -> pd.DataFrame:
    """Return the result of every run, with corrupted images' scores as means over strengths."""
    rows = result_rows(read_table(results))
    means = {
        metric.column: rows[[f"corrupted.{kind}.{s}.{score}" for s in STRENGTHS]].mean(axis=1)
        for metric in CORRUPTED
        for _, kind, score in [metric.column.split(".")]
    }
    return pd.concat([rows, pd.DataFrame(means)], axis=1)


def sides(rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return FedAvg's and RKLB's runs."""
    return rows[rows.rule == "FedAvg"], rows[rows.rule == "RKLB"]


def condition_table(rows: pd.DataFrame) -> str:
    """Return the scores of a condition: without a temperature, with it, and the difference."""
    plain, gaussian = sides(rows)
    body = []
    for metric in METRICS:
        bare = replace(metric, column=f"untempered.{metric.column}")
        first = metric in UNTEMPERED
        pair = by_seed(gaussian, metric), by_seed(plain, metric)
        found = compared(*pair)
        body.append(
            [
                metric.label,
                bare.show(plain[bare.column]) if first else "",
                metric.show(plain[metric.column]),
                bare.show(gaussian[bare.column]) if first else "",
                metric.show(gaussian[metric.column]),
                difference(metric, *pair),
                probability(found.t_test),
                probability(found.wilcoxon),
            ]
        )
    head = ["", "FedAvg", "FedAvg, T", "RKLB", "RKLB, T", "RKLB − FedAvg, both T [95 %]"]
    return table([*head, "p, t-test", "p, Wilcoxon"], body)


def summary_table(rows: pd.DataFrame) -> str:
    """Return who is ahead in what: a row a score, a column a condition.

    Corrected by Holm's method for all cells; "·" is what is not decided.
    """
    found: dict[tuple[str, str], Paired] = {}
    for condition, of_it in CONDITIONS.items():
        plain, gaussian = sides(rows[of_it(rows)])
        for metric in METRICS:
            pair = compared(by_seed(gaussian, metric), by_seed(plain, metric))
            found[metric.label, condition] = pair
    p = dict(zip(found, corrected([pair.t_test for pair in found.values()]), strict=True))

    def cell(metric: Metric, condition: str) -> str:
        pair = found[metric.label, condition]
        ahead = "RKLB" if (pair.mean < 0) == metric.lower_is_better else "FedAvg"
        alone, together = pair.t_test < 0.05, p[metric.label, condition] < 0.05
        return f"**{ahead}**" if together else f"({ahead})" if alone else "·"

    body = [[metric.label, *(cell(metric, name) for name in CONDITIONS)] for metric in METRICS]
    return table(["", *CONDITIONS], body)


def confirmation_table(rows: pd.DataFrame) -> str:
    """Return RKLB − FedAvg at the added seeds alone, of each condition that has such.

    In bold is what stands after Holm's correction for all of them.
    """
    plain, gaussian = sides(rows[rows.seed >= ADDED])
    conditions = [name for name, of_it in CONDITIONS.items() if of_it(plain).any()]
    pairs = {
        (metric, name): [by_seed(s[CONDITIONS[name](s)], metric) for s in (gaussian, plain)]
        for metric in METRICS
        for name in conditions
    }
    found = {key: compared(*pair) for key, pair in pairs.items()}
    p = dict(zip(found, corrected([each.t_test for each in found.values()]), strict=True))
    body = []
    for metric in METRICS:
        cells = []
        for name in conditions:
            pair, of_it = pairs[metric, name], found[metric, name]
            shown = difference(metric, *pair)
            cells += [f"**{shown}**" if p[metric, name] < 0.05 else shown]
            cells += [better(metric, *pair), probability(of_it.t_test)]
        body.append([metric.label, *cells])
    head = [text for name in conditions for text in (f"{name} [95 %]", "RKLB better", "p, t-test")]
    return table(["", *head], body)


def price_table(rows: pd.DataFrame) -> str:
    """Return what federation costs: ten clients after twenty rounds minus all data in one place."""
    names = ("twenty rounds", "all data in one place")
    ten, one = (sides(rows[CONDITIONS[name](rows)]) for name in names)
    body = []
    for metric in (ACCURACY, NLL, ECE_15, BRIER):
        pairs = [
            compared(by_seed(a, metric), by_seed(b, metric)) for a, b in zip(ten, one, strict=True)
        ]
        cells = ((metric.difference(pair), probability(pair.t_test)) for pair in pairs)
        body.append([metric.label, *(text for cell in cells for text in cell)])
    return table(["", "FedAvg, T [95 %]", "p", "RKLB, T [95 %]", "p"], body)


def tables(results: Path) -> str:
    """Return all tables in Markdown."""
    rows = read(results)
    parts = [
        f"### {name[0].upper()}{name[1:]}\n\n{condition_table(rows[of_it(rows)])}"
        for name, of_it in CONDITIONS.items()
    ]
    added = f"### The added seeds alone\n\n{confirmation_table(rows)}"
    price = f"### The price of federation\n\n{price_table(rows)}"
    return "\n\n".join([f"### Who is ahead\n\n{summary_table(rows)}", added, *parts, price])


def picture(results: Path) -> Figure:
    """Return RKLB's differences from FedAvg, a panel a score, a row a condition."""
    rows = read(results)
    figure = sheet(10.0, 2.8)
    panels = figure.subplots(1, len(DRAWN), sharey=True)
    for axes, metric in zip(panels, DRAWN, strict=True):
        found = {}
        for name, of_it in CONDITIONS.items():
            plain, gaussian = sides(rows[of_it(rows)])
            found[name] = compared(by_seed(gaussian, metric), by_seed(plain, metric))
        _page.draw_differences(axes, metric, found)
    figure.suptitle(
        "RKLB − FedAvg, both at a temperature; blue: RKLB ahead, red: FedAvg, grey: undecided"
    )
    return figure


if __name__ == "__main__":
    _page.run(__doc__, tables, picture)
