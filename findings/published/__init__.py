"""Numbers that papers print, to stand beside ours."""

import math
from functools import cache
from pathlib import Path

import pandas as pd

from fedbary.report.results import ACCURACY, ECE_100, NLL
from findings.maker import where

PERSONAL = ("pFedVem", "pFedBayes")
"""The methods of BA-BFL's Table IV beside its own."""

PRINTED = {ACCURACY: "accuracy", ECE_100: "ece", NLL: "nll"}
"""What BA-BFL's tables call our metrics."""

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
    table = _read("table1-ba-bfl").rename(columns={"algorithm": "rule"})
    return table.assign(rule=table["rule"].replace("FedAVG", "FedAvg"))


@cache
def table4() -> pd.DataFrame:
    """Return what Table IV of BA-BFL's last version prints of pFedBayes and pFedVem.

    Columns as in `table1`. Both are global models on the common test set, of all layers; by the
    authors' notebooks after 50 and 100 rounds, where BA-BFL has 50.
    """
    table = _read("table4-ba-bfl-vs-personalised").rename(columns={"method": "rule"})
    return table[table["rule"].isin(PERSONAL)].assign(bayesian_layers=3)


def published(dataset: str, bayesian_layers: int, rule: str, metric: str) -> tuple[float, float]:
    """Return a number of Tables 1 and IV with its standard deviation, NaN where they have none."""
    table = table4() if rule in PERSONAL else table1()
    point = {"bayesian_layers": bayesian_layers, "rule": rule}
    return _number(table, "std", dataset=dataset, metric=metric, **point)


def fedag_published(dataset: str, method: str, metric: str) -> tuple[float, float]:
    """Return a number of FedAG's Tables 2 and 3 and its standard error, NaN where they have none.

    Metrics are nll and rmse; methods BLR, VI, DE, FedAG-N0-t1 (linear, 1 round) and FedAG-N1-t5 (a
    network, 5 rounds). Means are over splits.
    """
    name = DATASETS.get(dataset, dataset)
    table = _read("tables2-3-fedag")
    return _number(table, "standard_error", dataset=name, method=method, metric=metric)


@cache
def _read(name: str) -> pd.DataFrame:
    return pd.read_csv(Path(__file__).parent / f"{name}.csv")


def _number(table: pd.DataFrame, spread: str, **point: object) -> tuple[float, float]:
    rows = [*where(table, **point)[["mean", spread]].itertuples(index=False)]
    return tuple(rows[0]) if rows else (math.nan, math.nan)
