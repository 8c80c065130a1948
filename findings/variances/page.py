"""Rules under variances that train: the table of docs/results/variances.md."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedbary.figures.looks import styles
from fedbary.figures.sheet import open_frame, sheet
from fedbary.report.cells import ACCURACY, NLL
from fedbary.report.differences import differences
from fedbary.report.markup import markdown_table
from fedbary.study.table import read_table, result_rows
from findings._pairs import SEED, detectable, of_pair

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RULES = ("RKLB", "WB", "EAA", "GAA", "AALV")
SETTINGS = ["inference", "prior", "prior_std", "kl_weight", "log_var_lr"]
NAMES = (
    "frozen",
    "trained, weight 1 (the papers' objective)",
    "trained, weight 0.1",
    "trained, weight 0.01",
    "trained, weight 0.001",
    "weight 0.1, prior std 0.1",
    "weight 1, prior: the last global posterior",
    "natural gradient, weight 0.01",
    "IVON, weight 0.01",
)
"""What the page calls the settings, in the order of the grid."""


def tables(results: Path) -> str:
    """Return accuracy / NLL of each rule, and how far apart the clients' variances lie."""
    rows = result_rows(read_table(results))
    spread = [column for column in rows if column.startswith("log_var_spread.")]
    accuracy = replace(ACCURACY, decimals=1)
    body = []
    settings = rows.groupby(SETTINGS, sort=False, dropna=False)
    for name, (_, of_it) in zip(NAMES, settings, strict=True):
        apart = of_it[spread].mean().mean()
        runs = [of_it[of_it["rule"] == rule] for rule in RULES]
        cells = [f"{accuracy.show(each['accuracy'])} / {each['nll'].mean():.3f}" for each in runs]
        body.append([name, f"{apart:.3f}", *cells])
    return markdown_table(["variances", "clients' spread", *RULES], body)


def facts(results: Path) -> Iterator[float]:
    """Yield RKLB's NLL less WB's over all settings, its interval, and the signed-rank test."""
    rows = result_rows(read_table(results))
    sided = rows.assign(side=rows["rule"])
    points = (*SETTINGS, *SEED)
    (found,) = differences(sided, [("RKLB", "WB")], [NLL], SEED, points).itertuples()
    yield from (found.mean, found.low, found.high, found.test.first, found.test.second)
    yield detectable(found)
    settings = sided.groupby(SETTINGS, sort=False, dropna=False)
    papers = dict(zip(NAMES, (own for _, own in settings), strict=True))[NAMES[1]]
    of_gaa = of_pair(papers, ("GAA", "RKLB"), NLL)
    yield from (of_gaa.mean, of_gaa.low, of_gaa.high)


def picture(results: Path) -> Figure:
    """Return the mean NLL of each rule, a row a setting."""
    rows = result_rows(read_table(results))
    figure = sheet(6.0, 3.2)
    axes = figure.subplots()
    settings = rows.groupby(SETTINGS, sort=False, dropna=False)
    for row, (_, of_it) in enumerate(settings):
        nll = of_it.groupby("rule")["nll"].mean()
        for place, rule in enumerate(RULES):
            label = rule if row == 0 else None
            height = row + 0.12 * (place - 2)
            axes.plot(nll[rule], height, linestyle="", label=label, **styles()[rule])
    axes.set_yticks(range(len(NAMES)), NAMES)
    axes.invert_yaxis()
    axes.set_xlabel("NLL")
    axes.legend(frameon=False)
    open_frame(axes)
    return figure
