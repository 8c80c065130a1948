"""FedAG's eight sets: federated methods beside what sees all data, and the paper's numbers.

It makes the tables and the picture of docs/results/regression.md from the results of
`findings/regression/grid.yaml` and of `findings/regression/central.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from fedbary.figures.sheet import BLUE, GREEN, GREY, ORANGE, RED, open_frame, sheet
from fedbary.report.cells import NLL
from fedbary.report.markup import bold, italic, markdown_table
from fedbary.scores.stats import corrected
from fedbary.study.table import read_table, result_rows, with_methods
from findings._pairs import of_pair
from findings.published import DATASETS, fedag_published
from findings.regression.scores import Estimate, scores_by_method

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BARE, NOISY = "FedAG, without noise", "FedAG"
METHODS = {
    "BLR": ("BLR", "BLR"),
    "FedAG, linear": ("FedAG, linear", "FedAG-N0-t1"),
    "VI": ("VI", "VI"),
    BARE: ("FedAG", "FedAG-N1-t5"),
    NOISY: ("FedAG + noise", ""),
    "RKLB": ("RKLB", ""),
    "WB": ("WB", ""),
    "DE": ("DE", "DE"),
}
"""What the page and what the paper call the methods, in the order of the columns."""

CLOSE = 0.1
"""How near to Bayesian linear regression the paper finds the linear FedAG, in nats."""

RIVALS = {
    "FedAG, no noise": (BARE, RED, "o"),
    "RKLB": ("RKLB", BLUE, "s"),
    "WB": ("WB", ORANGE, "D"),
    "VI, all data": ("VI", GREY, "^"),
    "DE, all data": ("DE", GREEN, "v"),
}
"""Whose NLL the picture shows beside that of FedAG with the noise term, and how."""

NOISE = ("diabetes", "yacht")
"""The sets on which the noise term is shown first."""


def read(results: Path) -> pd.DataFrame:
    """Return the scores by data set, split and method."""
    last = with_methods(result_rows(read_table(results)).copy())
    scores = scores_by_method(last, results)
    return scores.assign(set=scores["dataset"].map(DATASETS).fillna(scores["dataset"]))


def noise_table(scores: pd.DataFrame) -> str:
    """Return the NLL without the noise term and with it, and the 90 % intervals' coverage."""
    body = []
    for dataset in NOISE:
        means = scores[scores["dataset"] == dataset].groupby("method")[["nll", "coverage_90"]]
        cells = [
            f"{nll:.2f}; {100 * covered:.0f} % of the targets in the 90 % interval"
            for nll, covered in means.mean().loc[[BARE, NOISY]].to_numpy()
        ]
        body.append([DATASETS.get(dataset, dataset), *cells])
    return markdown_table(["set", "NLL without the noise term", "NLL with it"], body)


def scores_table(scores: pd.DataFrame, metric: str) -> str:
    """Return every method on every set: mean ± standard error, the paper's numbers below."""
    body = []
    for name, held in scores.groupby("set", sort=False):
        ours = {m: Estimate.of(held.loc[held["method"] == m, metric]) for m in METHODS}
        best = min(estimate.mean for estimate in ours.values())
        cells = []
        for method, estimate in ours.items():
            cell = bold(str(estimate)) if estimate.mean == best else str(estimate)
            paper = Estimate(*fedag_published(str(name), METHODS[method][1], metric))
            printed = "" if math.isnan(paper.mean) else f"<br>{italic(str(paper))}"
            cells.append(f"{cell}{printed}")
        body.append([str(name), *cells])
    return markdown_table([metric.upper(), *(shown for shown, _ in METHODS.values())], body)


def tables(results: Path) -> str:
    """Return all tables in Markdown."""
    scores = read(results)
    return "\n\n".join(
        [noise_table(scores), *(scores_table(scores, metric) for metric in ("nll", "rmse"))]
    )


def picture(results: Path) -> Figure:
    """Return each rival's NLL less that of FedAG with the noise term, with standard errors."""
    nll = read(results).pivot_table("nll", ["set", "split"], "method")
    gaps = (nll[BARE] - nll[NOISY]).groupby("set").mean()
    names = list(gaps.sort_values().index)
    figure = sheet(6.4, 3.8)
    axes = figure.subplots()
    for step, (label, (method, color, marker)) in enumerate(RIVALS.items()):
        found = [Estimate.of((nll[method] - nll[NOISY]).loc[name].dropna()) for name in names]
        rows = [row + 0.14 * (step - 2) for row in range(len(names))]
        axes.errorbar(
            [each.mean for each in found],
            rows,
            xerr=[each.error for each in found],
            fmt=marker,
            color=color,
            markersize=4.5,
            label=label,
        )
    axes.axvline(0, color="black", linewidth=1)
    axes.set_xscale("symlog", linthresh=1)
    axes.set_xticks((-1, -0.5, 0, 0.5, 1, 3, 10), ("−1", "−0.5", "0", "0.5", "1", "3", "10"))
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("NLL less that of FedAG with the noise term, in nats")
    axes.grid(axis="x", alpha=0.3)
    axes.legend(loc="lower right", fontsize=8)
    open_frame(axes)
    return figure


def facts(results: Path) -> Iterator[float]:
    """Yield what the page's sentences say beside its tables: differences with standard errors."""
    scores = read(results)
    nll = scores.pivot_table("nll", ["set", "split"], "method")
    means = nll.groupby("set").mean()
    yield from means["FedAG, linear"] - means["BLR"]
    yield from (CLOSE, _nll_of_std(0.2))
    for name, ours in means[BARE].items():
        yield ours - fedag_published(str(name), "FedAG-N1-t5", "nll")[0]
    strongest = means[[BARE, NOISY, "RKLB", "WB"]].idxmin(axis=1)
    for name, of_set in nll.groupby("set"):
        for one, two in (("RKLB", "WB"), (strongest[name], "DE")):
            found = Estimate.of((of_set[one] - of_set[two]).dropna())
            yield from (found.mean, found.error)
    sided = scores.assign(side=scores["method"], seed=scores["split"])
    found = [of_pair(own, ("RKLB", "WB"), NLL) for _, own in sided.groupby("set")]
    yield from corrected([row.t_test for row in found])
    yield from ((row.high - row.low) / 2 for row in found)
    rates = result_rows(read_table(results / "rates"))
    tried = rates.groupby(["dataset", "lr", "local_epochs"])
    yield from tried[["without_noise.nll", "rmse"]].mean().to_numpy().flatten()


def _nll_of_std(std: float) -> float:
    """Return the mean NLL of a Gaussian about its mean, in nats."""
    return 0.5 * math.log(2 * math.pi * math.e * std**2)
