"""Differences over pairs of runs of one seed."""

from __future__ import annotations

from typing import Any

import pandas as pd

from fedbary.report.cells import Metric
from fedbary.report.differences import differences

SEED = ("seed",)


def by_seed(rows: pd.DataFrame, metric: Metric) -> pd.Series:
    """Return a metric in its unit, by seed."""
    return metric.scale * rows.set_index("seed")[metric.column]


def of_pair(rows: pd.DataFrame, pair: tuple[str, str], metric: Metric) -> Any:
    """Return the row of `differences` on one pair of sides and one metric."""
    return next(differences(rows, [pair], [metric], SEED).itertuples())
