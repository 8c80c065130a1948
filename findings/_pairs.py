"""Differences over pairs of runs of one seed, as cells of a table in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from fedbary.report import markup
from fedbary.report.cells import Metric
from fedbary.report.differences import differences

SEED = ("seed",)


def by_seed(rows: pd.DataFrame, metric: Metric) -> pd.Series:
    """Return a metric in its unit, by seed."""
    return metric.scale * rows.set_index("seed")[metric.column]


def of_pair(
    rows: pd.DataFrame, pair: tuple[str, str], metric: Metric, points: Sequence[str] = ()
) -> Any:
    """Return the row of `differences` on one pair of sides and one metric."""
    return next(differences(rows, [pair], [metric], SEED, points).itertuples())


def difference(found: Any) -> str:
    """Return the mean difference with its 95 % interval, and of how many pairs, if some lack."""
    lacking = "" if found.pairs == found.repeats else f" ({found.pairs} of {found.repeats} pairs)"
    return f"{found.metric.difference(found)}{lacking}"


def better(found: Any) -> str:
    """Return at how many seeds the first side has the better score, and how many are ties."""
    return f"{found.ahead} of {found.pairs}" + (f", {found.ties} equal" if found.ties else "")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table whose cells are Markdown."""
    first, *others = ([markup.Markup(cell) for cell in row] for row in (head, *rows))
    return markup.table(first, others)
