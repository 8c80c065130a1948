"""FedAG's eight sets: federated methods beside what sees all data, and the paper's numbers.

Tables and picture of docs/results/regression.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from fedbary.figures.document import bold, italic
from fedbary.report.results import NLL
from fedbary.scores.stats import corrected
from fedbary.study.arms import with_methods
from findings import maker
from findings.maker import BLUE, GREEN, GREY, ORANGE, RED
from findings.published import DATASETS, fedag_published

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


CENTRAL = "central.csv.xz"
"""Scores of methods that see all data at once, beside the runs."""

POINT, SCORES = ["dataset", "split", "method"], ["nll", "rmse", "coverage_90"]

LARGE = 1e6
"""Means from this size are written with an exponent."""


@dataclass(frozen=True)
class Estimate:
    """A mean over splits with its standard error; NaN if there is none."""

    mean: float
    error: float

    @classmethod
    def of(cls, values: pd.Series) -> Estimate:
        """Estimate from a value of each split."""
        count = len(values)
        if not count or not np.isfinite(values).all():
            return cls(math.nan, math.nan)
        return cls(float(values.mean()), float(values.std(ddof=1)) / math.sqrt(count))

    def __str__(self) -> str:
        if math.isnan(self.mean):
            return "–"
        digits = max(2, 2 - math.floor(math.log10(abs(self.mean) or 1)))
        form = "{:.1e}" if abs(self.mean) >= LARGE else f"{{:.{digits}f}}"
        both = (self.mean,) if math.isnan(self.error) else (self.mean, self.error)
        return " ± ".join(map(form.format, both))


def read(results: Path) -> pd.DataFrame:
    """Return the scores by data set, split and method; those of all data have a table of theirs."""
    last = with_methods(maker.last(results))
    last["method"] = last["rule"] + last["model"].map({"linear": ", linear"}).fillna("")
    bare = last[[f"without_noise.{name}" for name in SCORES]].set_axis(SCORES, axis=1)
    bare = last[POINT].join(bare).assign(method=last["method"] + ", without noise").dropna()
    every = last, bare, pd.read_csv(results / CENTRAL)
    scores = pd.concat([each[[*POINT, *SCORES]] for each in every], ignore_index=True)
    return scores.assign(set=scores["dataset"].map(DATASETS).fillna(scores["dataset"]))


def tables(results: Path) -> Iterator[str]:
    """Yield the NLL and coverage without the noise term and with it, then every method's scores."""
    scores = read(results)
    means = scores.groupby(["set", "method"])[["nll", "coverage_90"]].mean()
    told = "{:.2f}; {:.0f} % of the targets in the 90 % interval"
    body = {name: [told.format(nll, 100 * covered) for nll, covered in
                   (means.loc[name, method] for method in (BARE, NOISY))]
            for name in ("diabetes", "Yacht")}  # fmt: skip
    yield maker.cells("set", ["NLL without the noise term", "NLL with it"], body)
    for metric in ("nll", "rmse"):
        body = {name: _scores(name, own, metric) for name, own in maker.by(scores, "set").items()}
        yield maker.cells(metric.upper(), [shown for shown, _ in METHODS.values()], body)


def _scores(name: str, own: pd.DataFrame, metric: str) -> list[str]:
    """Return every method's mean ± standard error on a set, the paper's numbers below."""
    ours = {m: Estimate.of(own.loc[own["method"] == m, metric]) for m in METHODS}
    best, cells = min(estimate.mean for estimate in ours.values()), []
    for method, estimate in ours.items():
        cell = bold(str(estimate)) if estimate.mean == best else str(estimate)
        paper = Estimate(*fedag_published(name, METHODS[method][1], metric))
        cells.append(cell if math.isnan(paper.mean) else f"{cell}<br>{italic(str(paper))}")
    return cells


def picture(results: Path) -> maker.Figure:
    """Return each rival's NLL less that of FedAG with the noise term, with standard errors."""
    nll = read(results).pivot_table("nll", ["set", "split"], "method")
    names = list((nll[BARE] - nll[NOISY]).groupby("set").mean().sort_values().index)
    figure, (axes,) = maker.panels(6.4, 3.8)
    maker.name_rows(axes, names)
    for step, (label, (method, color, marker)) in enumerate(RIVALS.items()):
        found = [Estimate.of((nll[method] - nll[NOISY]).loc[name].dropna()) for name in names]
        rows = [row + 0.14 * (step - 2) for row in range(len(names))]
        axes.errorbar(
            [each.mean for each in found], rows, xerr=[each.error for each in found], fmt=marker,
            color=color, markersize=4.5, label=label,
        )  # fmt: skip
    axes.axvline(0, color="black", linewidth=1)
    axes.set_xscale("symlog", linthresh=1)
    axes.set_xticks((-1, -0.5, 0, 0.5, 1, 3, 10), ("−1", "−0.5", "0", "0.5", "1", "3", "10"))
    axes.set_xlabel("NLL less that of FedAG with the noise term, in nats")
    axes.legend(fontsize=8)
    return figure


def facts(results: Path) -> Iterator[float]:
    """Yield what the page's sentences say beside its tables: differences with standard errors."""
    scores = read(results)
    nll = scores.pivot_table("nll", ["set", "split"], "method")
    means = nll.groupby("set").mean()
    yield from means["FedAG, linear"] - means["BLR"]
    yield from (CLOSE, 0.5 * math.log(2 * math.pi * math.e * 0.2**2))  # of errors with std 0.2
    for name, ours in means[BARE].items():
        yield ours - fedag_published(str(name), "FedAG-N1-t5", "nll")[0]
    strongest = means[[BARE, NOISY, "RKLB", "WB"]].idxmin(axis=1)
    for name, of_set in nll.groupby("set"):
        for one, two in (("RKLB", "WB"), (strongest[name], "DE")):
            found = Estimate.of((of_set[one] - of_set[two]).dropna())
            yield from (found.mean, found.error)
    sided = scores.assign(side=scores["method"], seed=scores["split"])
    pairs = [maker.of_pair(own, ("RKLB", "WB"), NLL) for _, own in sided.groupby("set")]
    yield from corrected([row.t_test for row in pairs])
    yield from ((row.high - row.low) / 2 for row in pairs)
    tried = maker.last(results / "rates").groupby(["dataset", "lr", "local_epochs"])
    yield from tried[["without_noise.nll", "rmse"]].mean().to_numpy().flatten()
