"""When posteriors pay: the picture and the table of docs/results/when-it-pays.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from fedbary.figures.sheet import BLUE, GREEN, ORANGE, RED, open_frame, sheet
from fedbary.report.cells import NLL
from fedbary.report.markup import markdown_table
from findings._pairs import detectable, of_pair
from findings.arms import page as arms
from findings.passes import page as passes
from findings.pretrained.conditions_page import CONDITIONS, of_condition
from findings.pretrained.page import read

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BOUND = arms.BOUND
COLORS = {"LDA": BLUE, "sites": GREEN, "FedAvg": RED, "SCAFFOLD": ORANGE}
PANELS = {
    "Dirichlet 0.5": "Dirichlet 0.5",
    "Dirichlet 0.1": "Dirichlet 0.1",
    "one class a client": "one class a client",
    "100 clients, a fifth a round": "100 images a client, 100 clients",
    "200 labels in all": "20 images a client",
    "50 labels in all": "5 images a client",
}
"""Conditions of the picture, and their titles: by skew, then by examples a client."""

HEADS = {
    "sites": "two rounds of sites",
    "LDA": "five rounds of LDA",
    "FedAvg": "twenty rounds of FedAvg",
    "SCAFFOLD": "twenty rounds of SCAFFOLD",
}
RIVALS = ("FedAvg", "SCAFFOLD")
ASKED = [
    ("Dirichlet 0.1", "sites", "FedAvg"),
    ("Dirichlet 0.1", "sites", "SCAFFOLD"),
    ("Dirichlet 0.5", "sites", "FedAvg"),
    ("200 labels in all", "sites", "FedAvg"),
    ("100 clients, a fifth a round", "LDA", "SCAFFOLD"),
]
"""Conditions and heads on pretrained features that are compared."""


def groups(results: Path) -> dict[str, pd.DataFrame]:
    """Return the last rounds of each condition on pretrained features."""
    folder = results.parent / "pretrained"
    first, rows = read(folder), read(folder / "conditions")
    ten = first[first["alpha"].eq(0.1) & ~first["kind"].isin(["alone", "one place"])]
    found = {"Dirichlet 0.1": ten[ten["covariance"].fillna("kronecker") == "kronecker"]}
    return found | {name: of_condition(rows, own) for name, own in CONDITIONS.items()}


def compared(results: Path) -> Iterator[tuple[str, str, str, Any]]:
    """Yield what is asked, both sides, and their difference in NLL at T."""
    found = groups(results)
    for name, one, other in ASKED:
        own = found[name]
        own = own[~own["kind"].isin(RIVALS) | (own["rounds"] == 20)]
        pair = of_pair(own.assign(side=own["kind"]), (one, other), NLL)
        yield name, HEADS[one], HEADS[other], pair
    rows = arms.read(results.parent / "arms")
    of_arms = arms.arms(rows)
    for asked, one, other in (
        ("noise in training", "noise, mean", "no noise, mean"),
        ("draws in prediction", "noise, draws", "noise, mean"),
    ):
        yield asked, one, other, of_pair(of_arms, (one, other), arms.AT_T)
    one, other = (f"{rule} × {arms.best(rows, rule):g}" for rule in ("RKLB", "WB"))
    yield "rule, best factors", one, other, of_pair(arms.factors(rows), (one, other), arms.AT_T)
    of_passes = passes.read(results.parent / "passes")
    for one, other in (("five FedAvg", "one FedAvg"), ("five RKLB", "five FedAvg")):
        yield "five networks", one, other, of_pair(of_passes, (one, other), arms.AT_T)


def verdict(pair: Any) -> str:
    """Return which side has the smaller NLL by the 95 % interval, or that none is known to."""
    if pair.high < 0 or pair.low > 0:
        small = max(abs(pair.low), abs(pair.high)) < BOUND
        return ("the first" if pair.high < 0 else "the second") + (", by a little" if small else "")
    return "level" if max(-pair.low, pair.high) < BOUND else "not decided"


def tables(results: Path) -> str:
    """Return at most ten comparisons, and who is ahead."""
    body = [
        [
            asked, one, other, NLL.difference(pair), f"{detectable(pair):.3f}",
            f"{pair.pairs}", verdict(pair),
        ]
        for asked, one, other, pair in compared(results)
    ]  # fmt: skip
    head = ["where", "first", "second", "NLL at T, first − second [95 %]"]
    return markdown_table([*head, "least effect seen", "seeds", "ahead"], body)


def picture(results: Path) -> Figure:
    """Return the NLL against rounds, a panel for each skew and number of examples a client."""
    found = groups(results)
    figure = sheet(9.0, 5.2)
    for axes, (name, title) in zip(figure.subplots(2, 3).flat, PANELS.items(), strict=True):
        own = found[name]
        for kind, color in COLORS.items():
            nll = own[own["kind"] == kind].groupby("rounds")["nll"]
            if nll.ngroups:
                axes.errorbar(
                    nll.mean().index, nll.mean(), nll.std(), fmt="o-", color=color, capsize=2,
                    markersize=4, label=kind,
                )  # fmt: skip
        axes.set_title(title, fontsize=9)
        axes.set_xscale("log")
        axes.set_xticks([1, 2, 5, 20], ["1", "2", "5", "20"])
        axes.minorticks_off()
        open_frame(axes)
    for axes in figure.axes[3:]:
        axes.set_xlabel("rounds")
    for axes in figure.axes[::3]:
        axes.set_ylabel("NLL at T")
    figure.axes[1].legend(frameon=False, fontsize=8)
    return figure
