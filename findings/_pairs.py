"""Differences over pairs of runs of one seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from fedbary.report.cells import Metric
from fedbary.report.differences import differences
from fedbary.report.markup import markdown_table

SEED = ("seed",)


def by_seed(rows: pd.DataFrame, metric: Metric) -> pd.Series:
    """Return a metric in its unit, by seed."""
    return metric.scale * rows.set_index("seed")[metric.column]


def of_pair(rows: pd.DataFrame, pair: tuple[str, str], metric: Metric) -> Any:
    """Return the row of `differences` on one pair of sides and one metric."""
    return next(differences(rows, [pair], [metric], SEED).itertuples())


def scores_table(first: str, groups: Mapping[str, pd.DataFrame], metrics: Sequence[Metric]) -> str:
    """Return mean ± standard deviation of metrics: a row a group of runs, by its name."""
    body = [
        [name, *(metric.show(runs[metric.column]) for metric in metrics)]
        for name, runs in groups.items()
    ]
    return markdown_table([first, *(metric.label for metric in metrics)], body)
