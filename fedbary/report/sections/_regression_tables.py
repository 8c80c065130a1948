"""Tables of regressions' scores: header and rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from fedbary.report.estimate import Estimate
from fedbary.report.markup import Markup, bold, escape, italic
from fedbary.report.published import DATASETS, fedag_published
from fedbary.report.sections._regression_scores import MORE
from fedbary.study.central import METHODS as CENTRAL_METHODS

METHODS = {
    "BLR": "BLR",
    "FedAG, linear": "FedAG-N0-t1",
    "VI": "VI",
    "FedAG": "FedAG-N1-t5",
    "FedAG + noise": "",
    "DE": "DE",
}
"""Methods that always come in this order, with the paper's name of those that it has."""


def by_method(scores: pd.DataFrame, metric: str) -> tuple[list[str], list[list[str]]]:
    methods = _order(list(scores["method"].unique()))
    rows = []
    for dataset, held in scores.groupby("dataset", sort=False):
        ours = {m: Estimate.of(held.loc[held["method"] == m, metric]) for m in methods}
        best = min((e.mean for e in ours.values() if e.mean == e.mean), default=math.nan)
        cells = []
        for method, estimate in ours.items():
            best_of_set = metric != "sharpness" and estimate.mean == best
            cell = bold(str(estimate)) if best_of_set else str(estimate)
            paper = Estimate(*fedag_published(str(dataset), METHODS.get(method, ""), metric))
            printed = Markup(f"{escape(cell)}<br>{italic(str(paper))}")
            cells.append(cell if math.isnan(paper.mean) else printed)
        splits = sorted({count for count in held.groupby("method")["split"].nunique()})
        counted = "–".join(map(str, dict.fromkeys((splits[0], splits[-1]))))
        rows.append([DATASETS.get(str(dataset), str(dataset)), counted, *cells])
    return ["data set", "splits", *methods], rows


def strongest(scores: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    rows = []
    for dataset, held in scores.groupby("dataset", sort=False):
        nll, rmse = (held.pivot_table(m, "split", "method") for m in ("nll", "rmse"))
        federated = nll.drop(columns=CENTRAL_METHODS, errors="ignore").mean().dropna()
        if "DE" not in nll or federated.empty:
            continue
        best = str(federated.idxmin())
        name = DATASETS.get(str(dataset), str(dataset))
        cells = [
            str(Estimate.of(values))
            for metric in (nll, rmse)
            for values in (metric[best], metric["DE"], (metric[best] - metric["DE"]).dropna())
        ]
        rows.append([name, best, *cells])
    scored = [
        f"{metric}{of}" for metric in ("NLL", "RMSE") for of in ("", " of DE", ", difference")
    ]
    return ["data set", "method", *scored], rows


def by_settings(scores: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    shown = ("nll", "rmse", "sharpness", "crps")
    rows = []
    for dataset, of_set in scores.groupby("dataset", sort=False):
        best = of_set.groupby(["method", "settings"])["nll"].mean().min()
        for (method, settings), held in of_set.groupby(["method", "settings"], sort=False):
            cells = [str(Estimate.of(held[metric])) for metric in shown]
            if held["nll"].mean() == best:
                cells[0] = bold(cells[0])
            splits = str(held["split"].nunique())
            rows.append(
                [DATASETS.get(str(dataset), str(dataset)), method, settings, splits, *cells]
            )
    return ["data set", "method", "settings", "splits", "NLL", "RMSE", "sharpness", "CRPS"], rows


def calibration(scores: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    methods = _order(list(scores["method"].unique()))
    rows = []
    for dataset, held in scores.groupby("dataset", sort=False):
        for method in methods:
            found = held[held["method"] == method]
            if found.empty:
                continue
            covered = " / ".join(f"{100 * found[name].mean():.0f}" for name in MORE[1:])
            name = DATASETS.get(str(dataset), str(dataset))
            rows.append([name, method, str(Estimate.of(found["crps"])), covered])
    return ["data set", "method", "CRPS", "in 50 / 90 / 95 %"], rows


def _order(methods: Sequence[str]) -> list[str]:
    """Return methods in the order of `METHODS`, others before the last of them."""
    others = sorted(set(methods) - METHODS.keys())
    known = [method for method in METHODS if method in methods]
    return [m for m in known if m != "DE"] + others + [m for m in known if m == "DE"]
