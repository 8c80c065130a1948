"""Differences over pairs of runs of one seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import pandas as pd

from fedbary.report.cells import Metric
from fedbary.report.differences import differences, p_value
from fedbary.report.markup import markdown_table
from fedbary.scores.stats import corrected

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


def no_worse(found: Any, bound: float) -> float:
    """Return the p of a one-sided t-test that the first side is not worse by a bound or more.

    A bound of 0 asks whether it is better.
    """
    return _one_sided(found, found.mean if found.metric.lower_is_better else -found.mean, bound)


def equivalence(found: Any, bound: float) -> float:
    """Return the p of two one-sided t-tests that a mean difference lies within ± bound.

    Source: Schuirmann, A comparison of the two one-sided tests procedure, 1987.
    """
    return _one_sided(found, abs(found.mean), bound)


def detectable(found: Any, power: float = 0.8) -> float:
    """Return the least mean difference that a paired t-test at 5 % shows with this power.

    It takes the differences' standard deviation for the true one. A smaller difference is likely to
    go unseen: that a test shows none says nothing of it.
    """
    return _least(found.pairs, power) * _deviation(found)


def pairs_for(found: Any, difference: float, power: float = 0.8) -> int:
    """Return how many pairs show a mean difference with this power, as `detectable` has it."""
    pairs = 3
    while _least(pairs, power) * _deviation(found) > difference:
        pairs += 1
    return pairs


@cache
def _least(pairs: int, power: float) -> float:
    """Return the least difference that is shown, in standard deviations of the differences."""
    from scipy import optimize, stats

    limit = stats.t(pairs - 1).ppf(0.975)

    def missing(difference: float) -> float:
        shift = difference * math.sqrt(pairs)
        return float(stats.nct.cdf(limit, pairs - 1, shift)) - (1 - power)

    return float(optimize.brentq(missing, 0, (2 * limit + 3) / math.sqrt(pairs)))


def _deviation(found: Any) -> float:
    from scipy import stats

    reach = stats.t(found.pairs - 1).ppf(0.975)
    return float((found.high - found.low) / (2 * reach) * math.sqrt(found.pairs))


def _one_sided(found: Any, worse: float, bound: float) -> float:
    from scipy import stats

    error = _deviation(found) / math.sqrt(found.pairs)
    return float(stats.t(found.pairs - 1).sf((bound - worse) / error))


def tests_table(head: str, metric: Metric, named: Mapping[str, Any], bound: float = 0.0) -> str:
    """Return differences with Holm's p over them all, and the least effect that was to be seen.

    With a bound also the p of equivalence. `named` has rows of `of_pair` by their names.
    """
    holm = corrected([row.t_test for row in named.values()])
    body = []
    for (name, row), p in zip(named.items(), holm, strict=True):
        same = [p_value(equivalence(row, bound))] if bound else []
        seen = f"{detectable(row):.{metric.decimals + 1}f}"
        body.append([name, metric.difference(row), p_value(p), *same, seen, f"{row.pairs}"])
    between = [f"p, within ±{bound:g}"] if bound else []
    shown = [head, f"{metric.label} [95 %]", "p, Holm", *between, "least effect seen at 80 %"]
    return markdown_table([*shown, "seeds"], body)
