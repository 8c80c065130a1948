"""How far every pair of rules lies apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedbary.figures.triangles import triangles
from fedbary.report.cells import Metric
from fedbary.report.comparison import (
    TOGETHER,
    Comparison,
    compare,
    enough_draws,
    of_draws,
    pairs_table,
)
from fedbary.report.document import Document
from fedbary.report.results import Results, grouped

DECIDED = 0.95
"""The probability above which the test is taken to have decided."""

ENOUGH = 6
"""Points from which on it can: with fewer, the ROPE being a quartile, no data give more."""


def add_rules_compared(
    results: Results, document: Document, metrics: Sequence[Metric], of_calibration: Metric
) -> None:
    """Add how far every pair of rules lies apart, with tests over seeds and over points.

    Parameters
    ----------
    metrics : sequence of Metric
        What rules are compared on; the pairs' test on the first is drawn.
    of_calibration : Metric
        What they are compared on too, after the first, where enough networks were drawn.
    """
    first, *others = metrics
    drawn = [of_calibration] if enough_draws(results.last) else []
    compared = {metric: compare(results.last, metric) for metric in (first, *drawn, *others)}
    if not compared[first]:
        return
    document.heading("Does the rule matter?")
    document.text(_BY_SPLIT if results.by_split else _BY_SEED)
    document.text(
        """The Bayesian signed-rank test (Benavoli et al. 2017) takes every point as
        independent, as in the paper. It gives the probability that the
        first is better, that both are practically equal, and that the second is better.
        Practically equal means a difference within the ROPE, as in the paper the 25th
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
            triangles({(c.first, c.second): c.test for c in compared[first]}),
            f"""The test on the {first.label}, pair by pair: each point is a draw from the
            posterior; the nearer it lies to a corner, the more probable is its answer.""",
        )
    for metric, pairs in compared.items():
        repeats = "pairs" if results.by_split else "seeds"
        header, rows = pairs_table(pairs, metric, bool(results.varied), repeats)
        folded = f"{metric.label}: all pairs" if results.varied else ""
        if not folded:
            document.heading(metric.label, 3)
        document.table([*results.variant_header, *header], rows, folded)


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
    results: Results, document: Document, compared: Mapping[Metric, Sequence[Comparison]]
) -> None:
    """Add a row per variant: how far apart clients' variances and the rules' results lie."""
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
            here = [pair for pair in pairs if pair.variant == variant]
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
