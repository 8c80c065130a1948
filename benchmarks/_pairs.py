"""Differences over pairs of runs of one seed, as cells of a table in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from fedbary.report.cells import Metric
from fedbary.scores.stats import Paired, paired


def by_seed(rows: pd.DataFrame, metric: Metric) -> pd.Series:
    """Return a metric in its unit, by seed."""
    return metric.scale * rows.set_index("seed")[metric.column]


def known(first: pd.Series, second: pd.Series) -> tuple[list[float], list[float]]:
    """Return the scores of the seeds at which both sides have one."""
    both = first.dropna().index.intersection(second.dropna().index)
    return first[both].tolist(), second[both].tolist()


def compared(first: pd.Series, second: pd.Series) -> Paired:
    """Return first − second over the seeds at which both have a score."""
    return paired(*known(first, second))


def difference(metric: Metric, first: pd.Series, second: pd.Series) -> str:
    """Return the mean difference with its 95 % interval, and of how many pairs, if some lack."""
    found, seeds = compared(first, second), len(first.index.union(second.index))
    lacking = "" if found.pairs == seeds else f" ({found.pairs} of {seeds} pairs)"
    return f"{metric.difference(found)}{lacking}"


def better(metric: Metric, first: pd.Series, second: pd.Series) -> str:
    """Return at how many seeds the first side has the better score, and how many are ties."""
    sign = 1 if metric.lower_is_better else -1
    pairs = list(zip(*known(first, second), strict=True))
    ahead = sum(sign * a < sign * b for a, b in pairs)
    ties = sum(a == b for a, b in pairs)
    return f"{ahead} of {len(pairs)}" + (f", {ties} equal" if ties else "")


def probability(p: float) -> str:
    """Return a p-value."""
    return "< .001" if p < 0.0005 else f"{p:.3f}".removeprefix("0")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))
