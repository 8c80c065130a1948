"""Heads on a text network's features: what docs/results/text.md shows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from fedbary.figures.sheet import BLUE, GREEN, GREY, RED, SKY, open_frame, sheet
from fedbary.report.cells import NLL
from fedbary.report.differences import differences, p_value
from fedbary.report.markup import markdown_table
from fedbary.study.table import read_table
from findings._pairs import SEED, detectable, of_pair
from findings.pretrained import page as pretrained

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIDES = ["LDA", "Ridge", "sites 2", "FedAvg 1", "FedAvg 5", "FedAvg 20", "one place"]
"""The sides of the table in its order; a number is that of rounds."""

PAIRS = [("LDA", side) for side in SIDES[3:]]
PAIRS += [("sites 2", side) for side in ("FedAvg 5", "FedAvg 20", "one place")]
"""What is tested, by NLL."""

ALONE = 50
"""Local epochs of a client that trains alone."""


def read(results: Path) -> pd.DataFrame:
    """Return the result of every run, with its kind of head and its side."""
    rows = pretrained.read(results)
    return rows.assign(side=rows["side"].where(rows["local_epochs"] != ALONE, "alone"))


def tables(results: Path) -> str:
    """Return the scores, the tests, and what was chosen, in Markdown."""
    rows = read(results)
    tests = [
        [f"{row.first} − {row.second}", NLL.difference(row), p_value(row.t_test), p_value(row.holm)]
        for row in differences(rows, PAIRS, [NLL], SEED).itertuples()
    ]
    return "\n\n".join(
        [
            pretrained.scores(rows, SIDES),
            markdown_table(["pair", "NLL [95 %]", "p, t-test", "p, Holm"], tests),
            *_chosen(results / "choice"),
        ]
    )


def facts(results: Path) -> list[float]:
    """Return a client alone's accuracy in per cent, the mean and the worst, and differences."""
    rows = read(results)
    seen = [detectable(of_pair(rows, (side, "FedAvg 5"), NLL)) for side in ("LDA", "sites 2")]
    also = [of_pair(rows, (side, "LDA"), NLL) for side in ("sites 2", "Ridge")]
    return [
        *pretrained.of_alone(rows), *seen,
        *(value for row in also for value in (row.mean, row.low, row.high)),
    ]  # fmt: skip


def _chosen(results: Path) -> list[str]:
    """Return the NLL on validation data by setting and rounds: of FedAvg, and of one place."""
    table = read_table(results)
    fedavg, central = table[table["method"] == "barycentre"], table[table["method"] == "PVI"]
    keys = ["local_epochs", "lr", "weight_decay"]
    mean = fedavg.groupby([*keys, "round"])["nll"].mean().unstack("round")
    body = [
        [*(f"{value:g}" for value in setting), *(_nll(row[each]) for each in (1, 5, 20))]
        for setting, row in mean.iterrows()
    ]
    last = central[central["round"] == 1].groupby("prior_std")["nll"].mean()
    head = ["FedAvg: `local_epochs`", "`lr`", "`weight_decay`", "round 1", "round 5", "round 20"]
    found = [[f"{std:g}", f"{nll:.4f}"] for std, nll in last.items()]
    return [markdown_table(head, body), markdown_table(["one place: `prior_std`", "NLL"], found)]


def _nll(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.4f}"


def picture(results: Path) -> Figure:
    """Return the NLL against rounds, with the central model as a line."""
    rows = read(results)
    figure = sheet(5.0, 3.4)
    axes = figure.subplots()
    for kind, color in {"LDA": BLUE, "Ridge": SKY, "sites": GREEN, "FedAvg": RED}.items():
        of_it = rows[(rows["kind"] == kind) & (rows["side"] != "alone")].groupby("rounds")["nll"]
        axes.errorbar(
            of_it.mean().index,
            of_it.mean(),
            of_it.std(),
            fmt="o-",
            color=color,
            capsize=2,
            label=pretrained.NAMES[kind],
        )
    central = rows.loc[rows["side"] == "one place", "nll"].mean()
    axes.axhline(central, color=GREY, linestyle="--", label=pretrained.NAMES["one place"])
    axes.set_xscale("log")
    axes.set_xticks([1, 5, 20], ["1", "5", "20"])
    axes.minorticks_off()
    axes.set_xlabel("rounds")
    axes.set_ylabel("NLL")
    axes.legend(frameon=False)
    open_frame(axes)
    return figure
