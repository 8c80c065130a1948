"""What was tried for the best settings, on validation data."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd

from fedbary.report.markup import markdown_table
from fedbary.study.table import read_table, result_rows

RULES = ("RKLB", "FedAvg")

CHOICES = {
    "fashionmnist": (
        "choice",
        "choice-rates",
        "choice-length",
        "choice-decay",
    ),
    "cifar10": (
        "choice-cifar10",
        "choice-cifar10-rates",
        "choice-cifar10-batches",
        "choice-cifar10-decay",
        "choice-cifar10-length",
    ),
}
"""The folders within, of runs on validation data that chose a data set's settings."""

TRIED = {
    "local_epochs": "local epochs",
    "batch_size": "batch",
    "normalise": "normalise",
    "pixels": "pixels",
    "augment": "augment",
    "server_momentum": "server's momentum",
    "kl_weight": "KL weight",
    "weight_decay": "weight decay",
    "lr": "lr",
}
"""The settings that were tried, and what the tables call them."""


def choice_table(results: Path, dataset: str) -> str:
    """Return what was tried for each rule on validation data, and the NLL at the clients' T.

    Of the settings those are shown that were not the same in all runs.
    """
    folders = CHOICES[dataset]
    runs = pd.concat(result_rows(read_table(results / folder)) for folder in folders)
    gaussian = runs["bayesian_layers"] > 0
    shown = pd.DataFrame({"": runs["rule"], "rounds": runs["rounds"].map("{:.0f}".format)})
    for setting, label in TRIED.items():
        of_it = runs[setting].where(gaussian) if setting == "kl_weight" else runs[setting]
        if of_it.nunique() > 1:
            shown[label] = of_it.map(_said)
    shown["NLL"] = runs["nll"].map("{:.4f}".format)
    is_best = runs["nll"] == runs.groupby("rule")["nll"].transform("min")
    marked_rows = shown.where(~is_best, "**" + shown + "**").replace("****", "")
    body = [row for rule in RULES for row in marked_rows[runs["rule"] == rule].values.tolist()]
    return markdown_table(list(shown), body)


def _said(value: object) -> str:
    """Return a setting's value in a table; "" if the run has none."""
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:g}"
    return str(value).lower()
