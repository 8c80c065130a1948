"""Numbers that papers print, to stand beside ours."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import pandas as pd

RULE_NAMES = {"FedAVG": "FedAvg"}
"""Our names of rules that the paper spells otherwise."""


PERSONAL = ("pFedVem", "pFedBayes")
"""The methods of BA-BFL's Table IV beside its own."""

DATASETS = {
    "bostonHousing": "Boston",
    "concrete": "Concrete",
    "energy": "Energy",
    "kin8nm": "Kin8nm",
    "naval-propulsion-plant": "Naval Propulsion",
    "power-plant": "Power Plant",
    "protein-tertiary-structure": "Protein",
    "wine-quality-red": "Red Wine",
    "yacht": "Yacht",
}
"""What FedAG's tables call the folders of the UCI sets."""


@cache
def table1() -> pd.DataFrame:
    """Return Table 1 of BA-BFL (Table III of its last version).

    Columns: dataset, bayesian_layers, rule, metric (accuracy and ece in per cent, nll in nats; the
    ECE has 100 bins), mean and std over seeds 0-2, of 50 rounds × 50 local epochs.
    """
    with (files(__package__) / "published" / "table1-ba-bfl.csv").open(encoding="utf-8") as file:
        table = pd.read_csv(file).rename(columns={"algorithm": "rule"})
    table["rule"] = table["rule"].replace(RULE_NAMES)
    return table


@cache
def table4() -> pd.DataFrame:
    """Return what Table IV of BA-BFL's last version prints of pFedBayes and pFedVem.

    Columns as in `table1`. Both are global models on the common test set, of all layers; by the
    authors' notebooks after 50 and 100 rounds, where BA-BFL has 50.
    """
    folder = files(__package__) / "published"
    with (folder / "table4-ba-bfl-vs-personalised.csv").open(encoding="utf-8") as file:
        table = pd.read_csv(file).rename(columns={"method": "rule"})
    return table[table["rule"].isin(PERSONAL)].assign(bayesian_layers=3)


def published(dataset: str, bayesian_layers: int, rule: str, metric: str) -> tuple[float, float]:
    """Return a number of Tables 1 and IV with its standard deviation, NaN where they have none."""
    table = table4() if rule in PERSONAL else table1()
    row = table[
        (table["dataset"] == dataset)
        & (table["bayesian_layers"] == bayesian_layers)
        & (table["rule"] == rule)
        & (table["metric"] == metric)
    ]
    if row.empty:
        return float("nan"), float("nan")
    return float(row["mean"].iloc[0]), float(row["std"].iloc[0])


@cache
def fedag() -> pd.DataFrame:
    """Return Tables 2-4 of FedAG: dataset, method, metric, mean and standard_error over splits.

    Metrics are nll, rmse and sharpness, of which the paper gives no error; methods BLR, VI, DE,
    FedAG-N0-t1 (linear, 1 round) and FedAG-N1-t5 (a network, 5 rounds).
    """
    folder = files(__package__) / "published"
    with (folder / "tables2-3-fedag.csv").open(encoding="utf-8") as file:
        scores = pd.read_csv(file)
    with (folder / "table4-fedag-sharpness.csv").open(encoding="utf-8") as file:
        sharpness = pd.read_csv(file).melt("dataset", var_name="method", value_name="mean")
    return pd.concat([scores, sharpness.assign(metric="sharpness")], ignore_index=True)


def fedag_published(dataset: str, method: str, metric: str) -> tuple[float, float]:
    """Return a number of `fedag` and its standard error, NaN where the paper has none."""
    table = fedag()
    row = table[
        (table["dataset"] == DATASETS.get(dataset, dataset))
        & (table["method"] == method)
        & (table["metric"] == metric)
    ]
    if row.empty:
        return float("nan"), float("nan")
    return float(row["mean"].iloc[0]), float(row["standard_error"].iloc[0])
