"""Pairs of rules compared over all the points that both have."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from fedbary.aggregation import RULES
from fedbary.report.cells import Metric
from fedbary.report.results import REPEATS, repeat
from fedbary.scores.stats import Paired, SignedRank, paired, signed_rank

POINT = ("dataset", "bayesian_layers", *REPEATS)

ENOUGH_DRAWS = 50
"""Networks drawn for a prediction below which rules are not compared on the ECE."""

TOGETHER = "all together"
"""The name under which the points of all variants are compared."""


@dataclass(frozen=True)
class Comparison:
    """Two rules under one variant of the settings.

    `test` is over all their `points`; `by_seed` is of first − second in the metric's unit as it is
    shown, with one pair a seed (and split), the means over the points that both rules have at it.
    """

    variant: str
    first: str
    second: str
    test: SignedRank
    by_seed: Paired
    points: int


def enough_draws(last: pd.DataFrame) -> bool:
    """Whether all predictions are of enough networks to compare rules on the ECE."""
    return bool((last["samples"] >= ENOUGH_DRAWS).all())


def of_draws(last: pd.DataFrame) -> str:
    """Say how the draw of the networks moves the ECE, or why rules are not compared on it."""
    if not enough_draws(last):
        return f"""Rules are not compared on the ECE, which moves with the draw of the networks by
            as much as rules differ: not all predictions here are of {ENOUGH_DRAWS} networks."""
    spread = 100 * last.get("monte_carlo.ece_15", pd.Series(dtype=float)).mean()
    measured = "" if spread != spread else f", in the mean over the runs {spread:.2f} points"
    return f"""The ECE of one posterior moves with the draw of the networks (standard deviation over
        repeated draws{measured}): a difference of that size says nothing of the rules."""


def compare(last: pd.DataFrame, metric: Metric) -> list[Comparison]:
    """Compare every pair of rules that share at least two points, variant by variant.

    If there are several variants, the points of all together are compared too, as `TOGETHER`.

    Parameters
    ----------
    last
        A row per run: its last round, with a column `variant`.
    metric
        What the rules are compared on.
    """
    return list(_comparisons(last, metric))


def _comparisons(last: pd.DataFrame, metric: Metric) -> Iterator[Comparison]:
    present = list(last["rule"].unique())
    rules = sorted(present, key=[*RULES, *sorted(present)].index)
    point = [column for column in (*POINT, "variant") if column in last]
    variants = list(last.groupby("variant", sort=False))
    if len(variants) > 1:
        variants.append((TOGETHER, last))
    for variant, rows in variants:
        for first, second in itertools.combinations(rules, 2):
            sides = [
                rows.loc[rows["rule"] == rule, [*point, metric.column]] for rule in (first, second)
            ]
            shared = sides[0].merge(sides[1], on=point, suffixes=("_1", "_2")).dropna()
            if len(shared) < 2:
                continue
            one, two = (metric.scale * shared[f"{metric.column}_{side}"] for side in (1, 2))
            test = signed_rank(one, two, metric.lower_is_better)
            repeats = repeat(shared)
            by_seed = paired(one.groupby(repeats).mean(), two.groupby(repeats).mean())
            yield Comparison(str(variant), first, second, test, by_seed, len(shared))


def pairs_table(
    pairs: Sequence[Comparison], metric: Metric, variants: bool, repeats: str = "seeds"
) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of a table of comparisons, the effect first.

    With `variants` rows begin with their variant, whose header the caller puts before these.
    `repeats` is what the pairs of the t-test are called.
    """
    places = metric.decimals + 1
    rows = []
    for pair in pairs:
        seeds, test = pair.by_seed, pair.test
        interval = f"{seeds.mean:+.{places}f}"
        if seeds.pairs > 1:
            interval += f" [{seeds.low:+.{places}f}, {seeds.high:+.{places}f}]"
        rows.append(
            [
                *([pair.variant] if variants else []),
                pair.first,
                pair.second,
                interval,
                str(seeds.pairs),
                *map(_p_value, (seeds.t_test, seeds.wilcoxon)),
                *(f"{p:.3f}" for p in (test.first, test.equal, test.second)),
                f"{test.rope:.2g}",
                str(pair.points),
            ]
        )
    header = ["first", "second", "first − second [95 %]", repeats, "p, t-test", "p, Wilcoxon"]
    header += ["P(first better)", "P(equal)", "P(second better)", "ROPE", "points"]
    return header, rows


def _p_value(p: float) -> str:
    if p < 0.0005:
        return "<0.001"
    return f"{p:.3f}" if p == p else "–"
