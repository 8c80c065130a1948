"""Where Gaussian weights pay: RKLB beside FedAvg, each with the clients' temperature, by condition.

It makes the tables of docs/results/pays.md from the runs of `findings/pays` and, in the
folder within, `start`, and draws `picture.png`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from fedbary.figures.sheet import sheet
from fedbary.report.cells import ACCURACY, BRIER, DETECTION, ECE_15, NLL, Metric
from fedbary.report.differences import difference, differences, p_value
from fedbary.report.markup import markdown_table
from fedbary.scores.stats import corrected
from fedbary.study.table import read_table, result_rows
from findings import _page
from findings._pairs import SEED, detectable, equivalence, pairs_for

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GAUSSIAN = "RKLB"
RIVALS = {"FedAvg": "FedAvg", "FedAvg from RKLB's initialisation": "WB"}
"""FedAvg from PyTorch's initialisation and from RKLB's; the rule of each's runs."""

START = "start"
"""The folder within, of runs from RKLB's initialisation and those at a step size for fifty."""

CONDITIONS: Mapping[str, Callable[[pd.DataFrame], pd.Series]] = {
    "twenty rounds": lambda t: (t.clients == 10) & (t.rounds == 20) & (t.alpha == 0.5),
    "five rounds": lambda t: t.rounds == 5,
    "label skew, Dirichlet 0.1": lambda t: t.alpha == 0.1,
    "fifty small clients": lambda t: (t.clients == 50) & (t.lr == 0.1),
    "fifty, step size of ten": lambda t: (t.clients == 50) & (t.lr == 0.05),
    "all data in one place": lambda t: t.clients == 1,
}
"""Every condition, and which runs of the table are of it."""

KINDS = ("blur", "noise", "contrast")
STRENGTHS = range(1, 6)
REJECTED = Metric("rejection.0.2", "accuracy %, a fifth passed on", 100, 2)
FOREIGN = replace(DETECTION[0], label="OOD AUROC %")
CORRUPTED = tuple(
    metric
    for kind in KINDS
    for metric in (
        Metric(f"corrupted.{kind}.accuracy", f"{kind}: accuracy %", 100, 2),
        Metric(f"corrupted.{kind}.nll", f"{kind}: NLL"),
    )
)
METRICS = (ACCURACY, NLL, ECE_15, BRIER, REJECTED, FOREIGN, *CORRUPTED)
UNTEMPERED = tuple(
    replace(metric, column=f"untempered.{metric.column}", label=f"{metric.label}, without T")
    for metric in (NLL, ECE_15, BRIER)
)
DRAWN = (ACCURACY, NLL, ECE_15, FOREIGN)
SEEN = (ACCURACY, NLL, ECE_15)

BOUND = 0.01
"""The difference in NLL below which two sides are taken for equal."""


def read(results: Path) -> pd.DataFrame:
    """Return the result of every run, with corrupted images' scores as means over strengths."""
    folders = (results, results / START)
    rows = pd.concat([result_rows(read_table(each)) for each in folders], ignore_index=True)
    means = {
        metric.column: rows[[f"corrupted.{kind}.{s}.{score}" for s in STRENGTHS]].mean(axis=1)
        for metric in CORRUPTED
        for _, kind, score in [metric.column.split(".")]
    }
    return pd.concat([rows, pd.DataFrame(means)], axis=1).copy()


def beside(rows: pd.DataFrame, rival: str, metrics: Sequence[Metric]) -> list[Any]:
    """Return RKLB's scores less its rival's: rows of `differences`, one a metric."""
    pair = (GAUSSIAN, RIVALS[rival])
    return [*differences(rows.assign(side=rows["rule"]), [pair], metrics, SEED).itertuples()]


def condition_table(rows: pd.DataFrame) -> str:
    """Return the scores of a condition, and how far RKLB is from each rival."""
    rules = (*RIVALS.values(), GAUSSIAN)
    body = []
    metrics = (*METRICS, *UNTEMPERED)
    for metric, *found in zip(
        metrics, *(beside(rows, each, metrics) for each in RIVALS), strict=True
    ):
        line = [metric.label]
        line += [metric.show(rows.loc[rows["rule"] == rule, metric.column]) for rule in rules]
        for row in found:
            line += [difference(row), p_value(row.t_test), p_value(row.wilcoxon)]
        body.append(line)
    head = ["", *RIVALS, GAUSSIAN]
    for rival in RIVALS:
        head += [f"{GAUSSIAN} − {rival} [95 %]", "p, t-test", "p, Wilcoxon"]
    return markdown_table(head, body)


def summary_table(rows: pd.DataFrame, rival: str) -> str:
    """Return who is ahead of RKLB and a rival: a row a score, a column a condition.

    Corrected by Holm's method for all cells; "·" is what is not decided.
    """
    found: dict[tuple[str, str], Any] = {
        (row.metric.label, condition): row
        for condition, of_it in CONDITIONS.items()
        for row in beside(rows[of_it(rows)], rival, METRICS)
    }
    p = dict(zip(found, corrected([each.t_test for each in found.values()]), strict=True))

    def cell(metric: Metric, condition: str) -> str:
        each = found[metric.label, condition]
        ahead = GAUSSIAN if (each.mean < 0) == metric.lower_is_better else "FedAvg"
        alone, together = each.t_test < 0.05, p[metric.label, condition] < 0.05
        return f"**{ahead}**" if together else f"({ahead})" if alone else "·"

    body = [[metric.label, *(cell(metric, name) for name in CONDITIONS)] for metric in METRICS]
    return markdown_table([f"beside {rival}", *CONDITIONS], body)


def price_table(rows: pd.DataFrame) -> str:
    """Return what federation costs: ten clients after twenty rounds minus all data in one place."""
    ten, one = (rows[CONDITIONS[name](rows)] for name in ("twenty rounds", "all data in one place"))
    arms = {**RIVALS, GAUSSIAN: GAUSSIAN}
    both = pd.concat(
        [each.assign(side=each["rule"] + at) for each, at in ((ten, " 10"), (one, " 1"))]
    )
    pairs = [(f"{rule} 10", f"{rule} 1") for rule in arms.values()]
    found = differences(both, pairs, (ACCURACY, NLL, ECE_15, BRIER), SEED)
    body = []
    for metric, of_it in found.groupby("metric", sort=False):
        line = [metric.label]
        for row in of_it.itertuples():
            line += [metric.difference(row), p_value(row.t_test)]
        body.append(line)
    return markdown_table(["", *(text for arm in arms for text in (f"{arm} [95 %]", "p"))], body)


def power_table(rows: pd.DataFrame) -> str:
    """Return the least difference that the tests show with a power of 80 %, by rival and score."""
    body = []
    for rival in RIVALS:
        found = [beside(rows[of_it(rows)], rival, SEEN) for of_it in CONDITIONS.values()]
        for metric, *cells in zip(SEEN, *found, strict=True):
            shown = (f"{detectable(cell):.{metric.decimals}f}" for cell in cells)
            body.append([rival, metric.label, *shown])
    return markdown_table(["beside", "seen from", *CONDITIONS], body)


def facts(results: Path) -> Iterator[float]:
    """Yield p of the equivalence in NLL, and the pairs that show the bound after twenty rounds."""
    rows = read(results)
    for condition, of_it in CONDITIONS.items():
        for rival in RIVALS:
            (found,) = beside(rows[of_it(rows)], rival, (NLL,))
            yield equivalence(found, BOUND)
            if condition == "twenty rounds":
                yield pairs_for(found, BOUND)


def tables(results: Path) -> str:
    """Return all tables in Markdown."""
    rows = read(results)
    parts = [
        f"### {name[0].upper()}{name[1:]}\n\n{condition_table(rows[of_it(rows)])}"
        for name, of_it in CONDITIONS.items()
    ]
    parts.append(f"### What could be seen\n\n{power_table(rows)}")
    ahead = "\n\n".join(summary_table(rows, rival) for rival in RIVALS)
    price = f"### The price of federation\n\n{price_table(rows)}"
    return "\n\n".join([f"### Who is ahead\n\n{ahead}", *parts, price])


def picture(results: Path) -> Figure:
    """Return RKLB's differences: a line of panels a rival, a panel a score, a row a condition."""
    rows = read(results)
    figure = sheet(10.0, 5.6)
    lines = figure.subplots(len(RIVALS), len(DRAWN), sharey=True)
    for rival, panels in zip(RIVALS, lines, strict=True):
        found = {
            name: beside(rows[of_it(rows)], rival, DRAWN) for name, of_it in CONDITIONS.items()
        }
        for place, (axes, metric) in enumerate(zip(panels, DRAWN, strict=True)):
            _page.draw_differences(axes, metric, {name: row[place] for name, row in found.items()})
        panels[0].set_title(f"RKLB − {rival}", loc="left")
    figure.suptitle("All at a temperature; blue: RKLB ahead, red: FedAvg, grey: undecided")
    return figure
