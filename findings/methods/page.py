"""Methods beside what papers print of them: two tables of docs/results/methods.md."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd

from fedbary.report.results import ACCURACY, NLL, Metric
from fedbary.study.arms import with_methods
from fedbary.study.table import read_table
from findings import maker
from findings.published import PRINTED, published

FOLDERS = (".", "choice", "cifar10", "digits", "tables", "regression")
OWN = Metric("personal.shares.personal.weighted_accuracy", "own", 100, 2)
PROJECTED = Metric("personal.shares.projected-1.weighted_accuracy", "own", 100, 2)
LOCAL = Metric("local_models.weighted_accuracy", "local", 100, 2)

OWN_PRINTED = {
    "pFedVem": "93.00",
    "pFedBayes": "91.42",
    "RKLB": "92.15 (WB)",
    "FedPop": "98.35, probably of MNIST",
}
"""Accuracies of clients' own models on their own data, as papers and authors' runs have them."""

OF_CIFAR10 = {"pFedVem": "72.61", "pFedBayes": "71.84", "RKLB": "78.92 (WB)"}
LOCAL_PRINTED = (79.12, 80.74, 76.10)
"""Local models on all test images in the authors' runs: FedAvg, pFedVem, WB."""

NAMES = {"RKLB": "BA-BFL, RKLB, n = 3"}
PAIRS = [("Conflation", "WB"), ("Conflation", "FKLB"), ("GAA", "WB"), ("GAA", "FKLB")]


def read(results: Path) -> pd.DataFrame:
    """Return the runs' results; of several settings of a method those of its paper."""
    rows = with_methods(maker.last(results))
    for setting, other in (("kl_weight", "share"), ("global_step", "exact")):
        if setting in rows:
            rows = rows[rows[setting] != other]
    return rows[rows.get("predictive", "") != "dropout"]


def _printed(dataset: str, method: str, metric: Metric) -> str:
    mean, std = published(dataset, 3, method, PRINTED[metric])
    return f"*{mean:.2f} ± {std:.2f}*"


def tables(results: Path) -> Iterator[str]:
    """Yield accuracies of global and of own models, printed and ours, by data set."""
    rows, body = maker.by(read(results), "rule"), {}
    for method, own in OWN_PRINTED.items():
        known, runs = method != "FedPop", rows[method]
        theirs = _printed("fashionmnist", method, ACCURACY) if known else (
            "*below 5, it has no global head*")  # fmt: skip
        ours = ACCURACY.show(runs["accuracy"])
        body[NAMES.get(method, method)] = [theirs, ours, f"*{own}*", OWN.show(runs[OWN.column])]
        if method == "RKLB":
            shown = PROJECTED.show(runs[PROJECTED.column])
            body["the same, projected, λ = 1"] = ["*88.14 before*", "", "*92.22 (IVON, WB)*", shown]
    heads = ["global, *printed*", "global, ours", "own models on own data, *printed*"]
    heads.append("ours, own shares of test images")
    yield maker.cells("Fashion-MNIST, accuracy %", heads, body)
    rows, body = maker.by(read(results / "cifar10"), "rule"), {}
    for method, own in OF_CIFAR10.items():
        runs = rows[method]
        cells = []
        for metric in (ACCURACY, NLL):
            cells += [_printed("cifar10", method, metric), metric.show(runs[metric.column])]
        shown = OWN.show(runs[OWN.column]) if runs[OWN.column].notna().any() else ""
        body[NAMES.get(method, method)] = [*cells, f"*{own}*", shown]
    heads = ["global accuracy %, *printed*", "ours", "global NLL, *printed*", "ours"]
    heads += ["own models on own data %, *printed*", "ours, own shares of test images"]
    yield maker.cells("CIFAR-10", heads, body)


def facts(results: Path) -> Iterator[float]:
    """Yield what the page's sentences say."""
    every = [read_table(results / folder) for folder in FOLDERS]
    yield sum(table["seconds"].sum() for table in every) / 3600
    yield from LOCAL_PRINTED
    for folder, metric in product((".", "cifar10", "digits"), (ACCURACY, NLL)):
        found = beside_fedavg(read(results / folder), metric)
        yield median(map(maker.detectable, found))
        yield from (row.holm for row in found)
    rows = read(results)
    for method, metric in product(("FedAvg", *OWN_PRINTED), (NLL, LOCAL)):
        scores = metric.scale * rows.loc[rows["rule"] == method, metric.column]
        yield from (scores.mean(), scores.std())
    for method in ("pFedVem", "pFedBayes", "RKLB"):
        yield from published("fashionmnist", 3, method, "nll")
    for row in maker.pairs(rows, PAIRS, NLL, "rule").values():
        yield from (row.mean, row.t_test)
    yield from rows.groupby("rule")["uncertainty.epistemic"].mean().loc[["DWC", "Conflation"]]
    regression = with_methods(maker.last(results / "regression"))
    spread = [column for column in regression if column.startswith("log_var_spread.")]
    by_rule = regression.groupby("rule")[spread].mean().loc[["RKLB", "WB", "EAA", "AALV"]]
    yield from (*by_rule.to_numpy().flatten(), *by_rule.mean(axis=1))


def beside_fedavg(rows: pd.DataFrame, metric: Metric) -> list[Any]:
    """Return each method's score less FedAvg's, the best mean NLL first."""
    names = rows.groupby("rule")["nll"].mean().dropna().sort_values().index.drop("FedAvg")
    return [*maker.pairs(rows, [(name, "FedAvg") for name in names], metric, "rule").values()]


def picture(results: Path) -> maker.Figure:
    """Return each method's NLL less FedAvg's on Fashion-MNIST, the best first."""
    found = beside_fedavg(read(results), NLL)
    figure, (axes,) = maker.panels(5.5, 0.19 * len(found) + 0.6)
    maker.draw_differences(axes, NLL, {row.first: row for row in found})
    axes.tick_params("y", labelsize=7)
    axes.set_xlabel("NLL less FedAvg's")
    return figure
