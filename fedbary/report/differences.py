"""Differences between two sides, with tests: the comparison in reports, commands and pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from fedbary.report.cells import Metric
from fedbary.scores.stats import corrected, paired, signed_rank


def differences(
    rows: pd.DataFrame,
    sides: Sequence[tuple[str, str]],
    metrics: Sequence[Metric],
    repeats: Sequence[str],
    points: Sequence[str] = (),
    least: int = 1,
) -> pd.DataFrame:
    """Return the mean of first − second over the repeats that both sides have a score of.

    Parameters
    ----------
    rows : DataFrame
        A row a run, with a column `side`. A side's runs of one point are averaged.
    sides : sequence of (str, str)
        The values of `side` to compare, first and second.
    metrics : sequence of Metric
        Metrics to compare.
    repeats : sequence of str
        The columns whose values are repetitions, each an independent pair: the seed, the split.
    points : sequence of str
        Columns, `repeats` included, whose combinations are the pairs of the Bayesian signed-rank
        test; empty: no such test.
    least : int
        Points that a pair must share to be compared.

    Returns
    -------
    DataFrame
        A row for each metric and pair. `metric`, `first` and `second` name it. `mean`, `low`,
        `high`, `t_test`, `wilcoxon` and `pairs` are those of `fedbary.scores.stats.Paired`, in the
        metric's unit. `holm` is the t-test's p corrected for the pairs of the metric. `repeats`
        counts a side's repeats, `ahead` the pairs in which the first side is better, see
        `fedbary.runs.direction`, `ties` the equal pairs. `points` and `test` are of the
        `SignedRank` test, None without points or without a better direction.
    """
    found = [
        row
        for metric in metrics
        for row in _corrected(
            [_compared(rows, pair, metric, repeats, points, least) for pair in sides]
        )
    ]
    return pd.DataFrame(found, columns=list(found[0]) if found else ["metric", "first", "second"])


def _corrected(found: Sequence[dict[str, Any] | None]) -> list[dict[str, Any]]:
    known = [row for row in found if row is not None]
    p_values = corrected([row["t_test"] for row in known])
    return [{**row, "holm": p} for row, p in zip(known, p_values, strict=True)]


def _compared(
    rows: pd.DataFrame,
    pair: tuple[str, str],
    metric: Metric,
    repeats: Sequence[str],
    points: Sequence[str],
    least: int,
) -> dict[str, Any] | None:
    keys = list(points or repeats)
    rows = rows[["side", *keys, metric.column]]
    scores = [
        metric.scale
        * rows[rows["side"] == side].groupby(keys, sort=False, dropna=False)[metric.column].mean()
        for side in pair
    ]
    every = scores[0].index.union(scores[1].index, sort=False)
    known = [side.dropna() for side in scores]
    shared = known[0].index.intersection(known[1].index, sort=False)
    if len(shared) < least:
        return None
    one, two = (side[shared] for side in known)
    lower = metric.lower_is_better
    tested = bool(points) and lower is not None
    test = signed_rank(one.tolist(), two.tolist(), bool(lower)) if tested else None
    if points:
        one, two = (
            side.groupby(level=list(repeats), sort=False, dropna=False).mean()
            for side in (one, two)
        )
        every = every.droplevel([key for key in points if key not in repeats]).unique()
    ahead = one < two if lower else one > two
    return {
        "metric": metric,
        "first": pair[0],
        "second": pair[1],
        **vars(paired(one.tolist(), two.tolist())),
        "repeats": len(every),
        "ahead": int(ahead.sum()),
        "ties": int((one == two).sum()),
        "points": len(shared),
        "test": test,
    }


def pairs_table(
    found: pd.DataFrame, lead: Mapping[str, Sequence[object]] | None = None
) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of a table of differences, the effect first, then the tests.

    Parameters
    ----------
    found : DataFrame
        As `differences` returns it, all with points or none.
    lead : mapping of str to sequence, optional
        Further columns behind that of the pair, by their heading: a value a row.
    """
    lead = lead or {}
    tested = bool(len(found)) and found["test"].notna().all()
    rows = []
    for row, *more in zip(found.itertuples(), *lead.values(), strict=True):
        cells = [f"{row.first} − {row.second}", *map(str, more), difference(row), better(row)]
        cells += [p_value(row.t_test), p_value(row.wilcoxon)]
        rows.append([*cells, _shares(row)] if tested else cells)
    labels = {metric.label for metric in found.get("metric", ())}
    effect = f"{labels.pop() if len(labels) == 1 else 'first − second'} [95 %]"
    header = ["pair", *lead, effect, "first better", "p, t-test", "p, Wilcoxon"]
    return [*header, SIGNED_RANK] if tested else header, rows


SIGNED_RANK = "signed-rank: first / equal / second (equal: within)"


def difference(found: Any) -> str:
    """Return the mean difference with its 95 % interval, and the number of pairs if some lack."""
    lacking = "" if found.pairs == found.repeats else f" ({found.pairs} of {found.repeats} pairs)"
    return f"{found.metric.difference(found)}{lacking}"


def better(found: Any) -> str:
    """Return the number of pairs in which the first side is better, and the number of ties.

    A dash stands for a score without a better direction.
    """
    if found.metric.lower_is_better is None:
        return "–"
    return f"{found.ahead} of {found.pairs}" + (f", {found.ties} equal" if found.ties else "")


def p_value(p: float) -> str:
    """Return a p-value; a dash if there was no test."""
    if p < 0.0005:
        return "<0.001"
    return f"{p:.3f}" if p == p else "–"


def _shares(found: Any) -> str:
    """Return the signed-rank test's probabilities, and its points if they outnumber the pairs."""
    test, points = found.test, "" if found.points == found.pairs else f", {found.points} points"
    shares = f"{test.first:.2f} / {test.equal:.2f} / {test.second:.2f}"
    return f"{shares} (± {test.rope:.{found.metric.decimals + 1}f}{points})"
