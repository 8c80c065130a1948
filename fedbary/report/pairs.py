"""Differences of every pair of methods, in each condition."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pandas as pd

from fedbary.figures.triangles import triangles
from fedbary.report.cells import Metric
from fedbary.report.differences import differences, p_value, pairs_table
from fedbary.report.document import Document
from fedbary.report.results import REPEATS, TOLD_APART, Results, grouped
from fedbary.scores.stats import corrected

ENOUGH_DRAWS = 50
"""Least number of networks drawn for a prediction; with fewer, methods are not compared on the
ECE."""

MOST_DRAWN = 30
"""The most pairs that are drawn."""


def add_pairs(results: Results, document: Document, metrics: Sequence[Metric]) -> None:
    """Add the differences of every pair of methods, with tests over repeats and over points.

    The pairs' test on the first metric is drawn. The ECE is left out if few networks were drawn.
    """
    enough = enough_draws(results.last)
    metrics = [metric for metric in metrics if metric.column in results.last]
    metrics = [metric for metric in metrics if enough or not metric.column.startswith("ece")]
    compared = {
        condition: {metric: found for metric in metrics if len(found := compare(rows, metric))}
        for condition, rows in grouped(results.last, "condition")
        if rows["arm"].nunique() <= TOLD_APART
    }
    if not any(compared.values()):
        return
    document.heading("Does the method matter?")
    document.text(_BY_SPLIT if results.by_split else _BY_SEED)
    document.text(
        """The Bayesian signed-rank test (Benavoli et al. 2017) takes every point as
        independent. It gives the probability that the
        first is better, that both are practically equal, and that the second is better.
        Practically equal means a difference within the ROPE, the 25th
        percentile of the absolute differences. A ROPE taken from the data shrinks with the
        differences, and calls equal a difference that is the same in every pair: look at the
        effect first."""
    )
    document.text(of_draws(results.last))
    for condition, of_metrics in compared.items():
        if of_metrics:
            document.heading(condition, 3)
        for number, (metric, pairs) in enumerate(of_metrics.items()):
            tests = {(pair.first, pair.second): pair.test for pair in pairs.itertuples()}
            if number == 0 and len(pairs) <= MOST_DRAWN and pairs["test"].notna().all():
                document.figure(
                    "triangles",
                    triangles(tests),
                    f"""The test on the {metric.label}, pair by pair: each point is a draw from the
                    posterior; the nearer it lies to a corner, the more probable is its answer.""",
                )
            header, rows = pairs_table(pairs)
            holm = [p_value(p) for p in pairs["holm"]]
            rows = [[*row, p] for row, p in zip(rows, holm, strict=True)]
            document.table([*header, "p, t-test, all pairs (Holm)"], rows, f"{metric.label}: pairs")


def enough_draws(last: pd.DataFrame) -> bool:
    """Return whether all predictions have enough networks to compare methods on the ECE."""
    return bool((last["samples"] >= ENOUGH_DRAWS).all())


def of_draws(last: pd.DataFrame) -> str:
    """Describe the spread of the ECE over draws, or say why methods are not compared on it."""
    if not enough_draws(last):
        return f"""Methods are not compared on the ECE, which moves with the draw of the networks by
            as much as rules differ: not all predictions here are of {ENOUGH_DRAWS} networks."""
    spread = 100 * last.get("monte_carlo.ece_15", pd.Series(dtype=float)).mean()
    measured = "" if spread != spread else f", in the mean over the runs {spread:.2f} points"
    return f"""The ECE of one posterior moves with the draw of the networks (standard deviation over
        repeated draws{measured}): a difference of that size says nothing of the methods."""


def compare(rows: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    """Compare every pair of arms that share at least two points.

    A pair's points are the numbers n of Gaussian layers that both have, times the repeats. If they
    share no n, they are the repeats, and each side is its mean over its own n.

    Parameters
    ----------
    rows
        A row per run of one condition: its result, with a column `arm`.
    metric
        Metric to compare.

    Returns
    -------
    DataFrame
        As `differences` returns it, corrected for all pairs.
    """
    layers = {arm: set(runs["bayesian_layers"]) for arm, runs in rows.groupby("arm", sort=False)}
    repeats = [column for column in REPEATS if column in rows]
    rows = rows.assign(side=rows["arm"])
    pairs = list(itertools.combinations(layers, 2))
    sharing = [pair for pair in pairs if layers[pair[0]] & layers[pair[1]]]
    apart = [pair for pair in pairs if pair not in sharing]
    found = [
        differences(rows, sides, [metric], repeats, points, least=2)
        for sides, points in ((sharing, ["bayesian_layers", *repeats]), (apart, repeats))
    ]
    both = pd.concat([each for each in found if len(each)] or found[:1], ignore_index=True)
    return both.assign(holm=corrected(both["t_test"].tolist())) if len(both) else both


_BY_SEED = """How far two methods lie apart is the mean of first − second over all points that both
    have: n and seed. Two methods without a common n, such as FedAvg with n = 0, are compared by
    seed, each by its mean over its own n.
    Points of one seed share its splits and initial networks, so the seeds alone count as
    independent: the 95 % interval, the paired t-test and Wilcoxon's signed-rank test are of
    one mean difference a seed. With 3 seeds Wilcoxon's p is never below 0.25, with 5 never
    below 0.06."""

_BY_SPLIT = """How far two methods lie apart is the mean of first − second over all points that both
    have: n, split and seed. Two methods without a common n, such as FedAvg with n = 0, are compared
    by split and seed, each by its mean over its own n.
    The 95 % interval, the paired t-test and Wilcoxon's signed-rank test are of one mean difference
    for each split and seed. The splits of a data set share most of their rows, so they are not
    independent: intervals are too narrow and p-values too small (Nadeau and Bengio 2003)."""
