"""Methods beside what papers print of them: two tables of docs/results/methods.md."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import pandas as pd

from fedbary.figures.sheet import sheet
from fedbary.report.cells import ACCURACY, NLL, Metric
from fedbary.report.differences import differences
from fedbary.report.markup import markdown_table
from fedbary.study.table import read_table, result_rows, with_methods
from findings._page import draw_differences
from findings._pairs import SEED, detectable
from findings.published import PRINTED, published

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLDERS = (".", "choice", "cifar10", "digits", "tables", "regression")
OWN = Metric("personal.shares.personal.weighted_accuracy", "own", 100, 2)
PROJECTED = Metric("personal.shares.projected-1.weighted_accuracy", "own", 100, 2)
LOCAL = Metric("local_models.weighted_accuracy", "local", 100, 2)

OWN_PRINTED = {
    "fashionmnist": {
        "pFedVem": "93.00",
        "pFedBayes": "91.42",
        "RKLB": "92.15 (WB)",
        "FedPop": "98.35, probably of MNIST",
    },
    "cifar10": {"pFedVem": "72.61", "pFedBayes": "71.84", "RKLB": "78.92 (WB)"},
}
"""Accuracies of clients' own models on their own data, as papers and authors' runs have them."""

PROJECTED_PRINTED = ("88.14 before", "92.22 (IVON, WB)")
NO_GLOBAL = "below 5, it has no global head"
LOCAL_PRINTED = (79.12, 80.74, 76.10)
"""Local models on all test images in the authors' runs: FedAvg, pFedVem, WB."""

SHOWN = ("pFedVem", "pFedBayes", "RKLB", "FedPop")
NAMES = {"RKLB": "BA-BFL, RKLB, n = 3"}
PAIRS = (("Conflation", "WB"), ("Conflation", "FKLB"), ("GAA", "WB"), ("GAA", "FKLB"))


def read(results: Path) -> pd.DataFrame:
    """Return the runs' results; of several settings of a method those of its paper."""
    rows = with_methods(result_rows(read_table(results)).copy())
    for setting, other in (("kl_weight", "share"), ("global_step", "exact")):
        if setting in rows:
            rows = rows[rows[setting] != other]
    return rows[rows.get("predictive", "") != "dropout"]


def _printed(dataset: str, method: str, metric: Metric) -> str:
    mean, std = published(dataset, 3, method, PRINTED[metric])
    return f"*{mean:.2f} ± {std:.2f}*"


def fashionmnist_table(rows: pd.DataFrame) -> str:
    """Return accuracies of global and of own models, printed and ours."""
    body = []
    for method in SHOWN:
        runs, known = rows[rows["rule"] == method], method != "FedPop"
        theirs = _printed("fashionmnist", method, ACCURACY) if known else f"*{NO_GLOBAL}*"
        own = f"*{OWN_PRINTED['fashionmnist'][method]}*"
        ours = ACCURACY.show(runs["accuracy"]), OWN.show(runs[OWN.column])
        body.append([NAMES.get(method, method), theirs, ours[0], own, ours[1]])
        if method == "RKLB":
            before, own = (f"*{text}*" for text in PROJECTED_PRINTED)
            shown = PROJECTED.show(runs[PROJECTED.column])
            body.append(["the same, projected, λ = 1", before, "", own, shown])
    head = ["global, *printed*", "global, ours", "own models on own data, *printed*"]
    head.append("ours, own shares of test images")
    return markdown_table(["Fashion-MNIST, accuracy %", *head], body)


def cifar10_table(rows: pd.DataFrame) -> str:
    """Return accuracies and NLL of global models, and accuracies of own ones."""
    body = []
    for method, own in OWN_PRINTED["cifar10"].items():
        runs, cells = rows[rows["rule"] == method], [NAMES.get(method, method)]
        for metric in (ACCURACY, NLL):
            cells += [_printed("cifar10", method, metric), metric.show(runs[metric.column])]
        shown = OWN.show(runs[OWN.column]) if runs[OWN.column].notna().any() else ""
        body.append([*cells, f"*{own}*", shown])
    head = ["global accuracy %, *printed*", "ours", "global NLL, *printed*", "ours"]
    head += ["own models on own data %, *printed*", "ours, own shares of test images"]
    return markdown_table(["CIFAR-10", *head], body)


def tables(results: Path) -> str:
    """Return both tables in Markdown."""
    parts = [fashionmnist_table(read(results)), cifar10_table(read(results / "cifar10"))]
    return "\n\n".join(parts)


def facts(results: Path) -> Iterator[float]:
    """Yield what the page's sentences say."""
    every = [read_table(results / folder) for folder in FOLDERS]
    yield sum(table["seconds"].sum() for table in every) / 3600
    yield from LOCAL_PRINTED
    for folder in (".", "cifar10", "digits"):
        for metric in (ACCURACY, NLL):
            found = beside_fedavg(read(results / folder), metric)
            yield median(detectable(row) for row in found.itertuples())
            yield from found["holm"]
    rows = read(results)
    for method, metric in itertools.product(("FedAvg", *SHOWN), (NLL, LOCAL)):
        scores = metric.scale * rows.loc[rows["rule"] == method, metric.column]
        yield from (scores.mean(), scores.std())
    for method in SHOWN[:3]:
        yield from published("fashionmnist", 3, method, "nll")
    for found in differences(rows.assign(side=rows["rule"]), PAIRS, [NLL], SEED).itertuples():
        yield from (found.mean, found.t_test)
    yield from rows.groupby("rule")["uncertainty.epistemic"].mean().loc[["DWC", "Conflation"]]
    regression = result_rows(read_table(results / "regression")).copy()
    spread = [column for column in regression if column.startswith("log_var_spread.")]
    by_rule = with_methods(regression).groupby("rule")[spread].mean()
    yield from by_rule.loc[["RKLB", "WB", "EAA", "AALV"]].to_numpy().flatten()
    yield from by_rule.loc[["RKLB", "WB", "EAA", "AALV"]].mean(axis=1)


def beside_fedavg(rows: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    """Return each method's score less FedAvg's, the best mean NLL first: rows of `differences`."""
    names = rows.groupby("rule")["nll"].mean().dropna().sort_values().index.drop("FedAvg")
    pairs = [(name, "FedAvg") for name in names]
    return differences(rows.assign(side=rows["rule"]), pairs, [metric], SEED)


def picture(results: Path) -> Figure:
    """Return each method's NLL less FedAvg's on Fashion-MNIST, the best first."""
    found = beside_fedavg(read(results), NLL)
    figure = sheet(5.5, 0.19 * len(found) + 0.6)
    axes = figure.subplots()
    draw_differences(axes, NLL, {row.first: row for row in found.itertuples()})
    axes.tick_params("y", labelsize=7)
    axes.set_xlabel("NLL less FedAvg's")
    return figure
