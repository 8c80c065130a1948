"""Pairs of rules compared over all the points that both have."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from fedbary.aggregation import RULES
from fedbary.experiments.cells import Metric
from fedbary.stats import SignedRank, signed_rank

POINT = ["dataset", "bayesian_layers", "seed"]

TOGETHER = "all together"
"""The name under which the points of all variants are compared."""


@dataclass(frozen=True)
class Comparison:
    """Two rules under one variant of the settings: the test, and the mean of first − second.

    `gap` is in the metric's unit as it is shown, `points` the number of pairs.
    """

    variant: str
    first: str
    second: str
    test: SignedRank
    gap: float
    points: int


def compare(last: pd.DataFrame, metric: Metric) -> list[Comparison]:
    """Compare every pair of rules that share at least two points, variant by variant.

    Where there are several variants, the points of all together are compared too, as `TOGETHER`.

    Parameters
    ----------
    last
        A row per run: its last round, with a column `variant`.
    metric
        What the rules are compared on.
    """
    return list(_comparisons(last, metric))


def _comparisons(last: pd.DataFrame, metric: Metric) -> Iterator[Comparison]:
    rules = [rule for rule in RULES if (last["rule"] == rule).any()]
    columns = [*POINT, "variant", metric.column]
    variants = list(last.groupby("variant", sort=False))
    if len(variants) > 1:
        variants.append((TOGETHER, last))
    for variant, rows in variants:
        for first, second in itertools.combinations(rules, 2):
            sides = [rows.loc[rows["rule"] == rule, columns] for rule in (first, second)]
            shared = (
                sides[0].merge(sides[1], on=[*POINT, "variant"], suffixes=("_1", "_2")).dropna()
            )
            if len(shared) < 2:
                continue
            one, two = (metric.scale * shared[f"{metric.column}_{side}"] for side in (1, 2))
            test = signed_rank(one, two, metric.lower_is_better)
            gap = float((one - two).mean())
            yield Comparison(str(variant), first, second, test, gap, len(shared))
