"""Differences of every pair of rules."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import pandas as pd

from fedbary.aggregation import RULES
from fedbary.figures.triangles import triangles
from fedbary.report.cells import Metric
from fedbary.report.differences import differences, pairs_table
from fedbary.report.document import Document
from fedbary.report.results import REPEATS, Results, grouped

POINT = ("dataset", "bayesian_layers", *REPEATS)

ENOUGH_DRAWS = 50
"""Least number of networks drawn for a prediction; with fewer, rules are not compared on the
ECE."""

TOGETHER = "all together"
"""The name under which the points of all variants are compared."""

DECIDED = 0.95
"""Probability above which the test counts as decided."""

ENOUGH = 6
"""Least number of points for a decision: with fewer the test never reaches that probability,
because the ROPE is a quartile."""


def add_rules_compared(
    results: Results, document: Document, metrics: Sequence[Metric], of_calibration: Metric
) -> None:
    """Add the differences of every pair of rules, with tests over seeds and over points.

    Parameters
    ----------
    metrics : sequence of Metric
        Metrics to compare; the pairs' test on the first is drawn.
    of_calibration : Metric
        Compared after the first metric, if enough networks were drawn.
    """
    first, *others = metrics
    drawn = [of_calibration] if enough_draws(results.last) else []
    compared = {metric: compare(results.last, metric) for metric in (first, *drawn, *others)}
    if compared[first].empty:
        return
    document.heading("Does the rule matter?")
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
    if results.varied:
        _add_variants(results, document, compared)
    else:
        document.figure(
            "triangles",
            triangles({(c.first, c.second): c.test for c in compared[first].itertuples()}),
            f"""The test on the {first.label}, pair by pair: each point is a draw from the
            posterior; the nearer it lies to a corner, the more probable is its answer.""",
        )
    for metric, pairs in compared.items():
        lead = {name: pairs["variant"].tolist() for name in results.variant_header}
        header, rows = pairs_table(pairs, lead)
        folded = f"{metric.label}: all pairs" if results.varied else ""
        if not folded:
            document.heading(metric.label, 3)
        document.table(header, rows, folded)


def enough_draws(last: pd.DataFrame) -> bool:
    """Return whether all predictions have enough networks to compare rules on the ECE."""
    return bool((last["samples"] >= ENOUGH_DRAWS).all())


def of_draws(last: pd.DataFrame) -> str:
    """Describe the spread of the ECE over draws, or say why rules are not compared on it."""
    if not enough_draws(last):
        return f"""Rules are not compared on the ECE, which moves with the draw of the networks by
            as much as rules differ: not all predictions here are of {ENOUGH_DRAWS} networks."""
    spread = 100 * last.get("monte_carlo.ece_15", pd.Series(dtype=float)).mean()
    measured = "" if spread != spread else f", in the mean over the runs {spread:.2f} points"
    return f"""The ECE of one posterior moves with the draw of the networks (standard deviation over
        repeated draws{measured}): a difference of that size says nothing of the rules."""


def compare(last: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    """Compare every pair of rules that share at least two points, variant by variant.

    Parameters
    ----------
    last
        A row per run: its last round, with a column `variant`.
    metric
        Metric to compare.

    Returns
    -------
    DataFrame
        As `differences` returns it, with a column `variant`; the points of several variants are
        compared all together too, as `TOGETHER`.
    """
    present = list(last["rule"].unique())
    pairs = list(itertools.combinations(sorted(present, key=[*RULES, *sorted(present)].index), 2))
    point = [column for column in (*POINT, "variant") if column in last]
    repeats = [column for column in REPEATS if column in last]
    rows = last.assign(side=last["rule"])
    variants = [(str(variant), of_it) for variant, of_it in rows.groupby("variant", sort=False)]
    if len(variants) > 1:
        variants.append((TOGETHER, rows))
    found = [
        differences(of_it, pairs, [metric], repeats, point, least=2).assign(variant=variant)
        for variant, of_it in variants
    ]
    return pd.concat([each for each in found if len(each)] or found, ignore_index=True)


_BY_SEED = """How far two rules lie apart is the mean of first − second over all points that both
    have: data set, n and seed (FedAvg, with n = 0, has none in common with the others).
    Points of one seed share its splits and initial networks, so the seeds alone count as
    independent: the 95 % interval, the paired t-test and Wilcoxon's signed-rank test are of
    one mean difference a seed. With 3 seeds Wilcoxon's p is never below 0.25, with 5 never
    below 0.06."""

_BY_SPLIT = """How far two rules lie apart is the mean of first − second over all points that both
    have: data set, n, split and seed (FedAvg, with n = 0, has none in common with the others).
    The 95 % interval, the paired t-test and Wilcoxon's signed-rank test are of one mean difference
    for each split and seed. The splits of a data set share most of their rows, so they are not
    independent: intervals are too narrow and p-values too small (Nadeau and Bengio 2003)."""


def _add_variants(
    results: Results, document: Document, compared: Mapping[Metric, pd.DataFrame]
) -> None:
    """Add a row per variant: the spread of the clients' variances and of the rules' results."""
    spread = [column for column in results.last if column.startswith("log_var_spread.")]
    rows = []
    bayesian = results.last[results.last["bayesian_layers"] > 0]
    for variant, runs in [*grouped(bayesian, "variant"), (TOGETHER, bayesian)]:
        cells = [variant, f"{runs[spread].mean(axis=1).mean():.3f}"]
        for metric, pairs in compared.items():
            means = metric.scale * runs.groupby("rule")[metric.column].mean().dropna()
            means = means.sort_values(ascending=metric.lower_is_better)
            ends = [
                f"{means[r]:.{metric.decimals}f} ({r})" for r in means.index[[0, -1][: len(means)]]
            ]
            cells.append(" … ".join(ends))
            here = list(pairs[pairs["variant"] == variant].itertuples())
            decided = sum(max(p.test.first, p.test.second) > DECIDED for p in here)
            few = any(pair.points < ENOUGH for pair in here)
            cells.append("too few points" if few else f"{decided} of {len(here)}")
        rows.append(cells)
    header = [*results.variant_header, "clients' spread of log-variances"]
    for metric in compared:
        header += [f"{metric.label}: best … worst rule", "pairs decided"]
    document.text(
        """A row for each variant of the settings, and one for the points of all of them
        together. The spread is the standard deviation of a weight's log-variance over the
        clients in the last round, averaged over weights and then layers: 0 is clients
        that hold the same variances. A pair of rules is decided if one is better with
        probability above {decided}; fewer than {enough} points cannot decide, whatever
        they are.""",
        decided=DECIDED,
        enough=ENOUGH,
    )
    document.table(header, rows)
