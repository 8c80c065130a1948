"""Numbers that papers print, to stand beside ours."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import pandas as pd

RULE_NAMES = {"FedAVG": "FedAvg"}
"""Our names of rules that the paper spells otherwise."""


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


def published(dataset: str, bayesian_layers: int, rule: str, metric: str) -> tuple[float, float]:
    """Return a number of `table1` and its standard deviation, NaN where the paper has none."""
    table = table1()
    row = table[
        (table["dataset"] == dataset)
        & (table["bayesian_layers"] == bayesian_layers)
        & (table["rule"] == rule)
        & (table["metric"] == metric)
    ]
    if row.empty:
        return float("nan"), float("nan")
    return float(row["mean"].iloc[0]), float(row["std"].iloc[0])
