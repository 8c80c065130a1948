"""Whether the rule matters: pairs of rules over seeds, by score and by round.

Tables and picture of docs/results/rules.md, from the runs and from what `findings.rules.draws`
wrote.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd

from fedbary.report.results import (
    ACCURACY,
    BRIER,
    ECE_15,
    ECE_100,
    NLL,
    Metric,
    difference,
    differences,
    format_wins,
    p_value,
)
from fedbary.scores.stats import corrected
from fedbary.settings.owners import rule_name
from fedbary.study.table import read_table, result_rows
from findings import maker
from findings.maker import SEED

AGAIN = "WB again"
"""WB with other batches and noise in training: what differs by chance."""

EFFECTS = {
    ("RKLB", "WB"): "both",
    ("RKLBMean", "WB"): "its mean",
    ("RKLBVariance", "WB"): "its variance",
    (AGAIN, "WB"): "chance",
}
"""What each of these pairs differs in; they are followed round by round."""

DIFFER = {
    **EFFECTS,
    ("RKLB", "RKLBVariance"): "its mean",
    ("RKLB", "RKLBMean"): "its variance",
    ("RKLB", "EAA"): "both",
    ("RKLB", "GAA"): "both",
    ("RKLB", "FedAvg"): "Gaussian weights",
    ("WB", "FedAvg"): "Gaussian weights",
    ("GAA", "FedAvg"): "initialisation, early noise",
}
"""All pairs, and what they differ in."""

TESTED = tuple(DIFFER)[:6]
"""The pairs whose tests, in all of `METRICS`, are corrected together: 24."""

METRICS = (NLL, ACCURACY, ECE_15, BRIER)
SHOWN = (ACCURACY, NLL, ECE_15, ECE_100, BRIER, maker.EPISTEMIC)
BOUND = 0.01
"""The difference in NLL below which two rules are taken for equal."""

ROUNDS = (1, 2, 5, 10, 20, 30, 40)
DRAWS = "draws.csv"
"""The scores of runs whose posteriors were kept, by number of draws."""

DRAWN = (ECE_15, ECE_100)
"""What is shown of them."""


def read(results: Path) -> pd.DataFrame:
    """Return the rows of all rounds, with a column `arm`: the rule's own name, or `AGAIN`."""
    rows = read_table(results)
    names = rows["rule"].replace({rule: rule_name(rule) for rule in rows["rule"].unique()})
    return rows.assign(arm=names.mask(rows["replicate"] > 0, AGAIN))


def compared(
    rows: pd.DataFrame, *metrics: Metric, pairs: Sequence[tuple[str, str]] = tuple(DIFFER)
) -> pd.DataFrame:
    """Return how far those pairs of arms that are there lie apart, with three tests over seeds."""
    scores = rows[["arm", *SEED, *(metric.column for metric in metrics)]]
    known = [pair for pair in pairs if set(pair) <= set(rows["arm"])]
    scores = scores.rename(columns={"arm": "side"})
    return maker.ranked(differences(scores, known, metrics, SEED), scores)


def holm(last: pd.DataFrame) -> dict[tuple[str, str, str], float]:
    """Return p of the t-tests of the pairs in `TESTED` and all scores, corrected for their number.

    By the score's column and the pair.
    """
    rows = [*compared(last, *METRICS, pairs=TESTED).itertuples()]
    p = corrected([row.t_test for row in rows])
    names = [(row.metric.column, row.first, row.second) for row in rows]
    return dict(zip(names, p, strict=True))


def after_the_last(
    last: pd.DataFrame, metric: Metric, p: Mapping[tuple[str, str, str], float]
) -> str:
    """Return every pair's difference after the last round, with `holm`'s p."""
    rows = [((f"{row.first} − {row.second}", DIFFER[row.first, row.second]),
             row._replace(holm=p.get((metric.column, row.first, row.second), math.nan)))
            for row in compared(last, metric).itertuples()]  # fmt: skip
    columns = [maker.effect(metric), maker.BETTER, *maker.P_AND_HOLM, *maker.RANKS]
    return maker.table(("pair", "they differ in"), rows, columns)


def draws_table(rows: pd.DataFrame) -> str:
    """Return every pair's differences in ECE at each number of draws."""
    found = [compared(own, *DRAWN).assign(draws=draws) for draws, own in rows.groupby("draws")]
    every = pd.concat(found).groupby(["first", "second", "draws"], sort=False)
    order = sorted(every, key=lambda each: [*DIFFER].index(each[0][:2]))
    body = [
        ((f"{one} − {two}", draws), [text for row in own.itertuples()
         for text in (difference(row), format_wins(row), p_value(row.t_test))])
        for (one, two, draws), own in order
    ]  # fmt: skip
    head = [text for m in DRAWN for text in (f"{m.label} [95 %]", "first better", "p, t-test")]
    return maker.cells(("pair", "draws"), head, body)


def tables(results: Path) -> Iterator[str]:
    """Yield the scores by NLL, each score's pairs, the NLL by round, and more draws."""
    rows = read(results)
    last = result_rows(rows)
    arms = sorted(maker.by(last, "arm").items(), key=lambda each: each[1]["nll"].mean())
    seeds = "seeds", lambda runs: f"{len(runs)}"
    yield maker.table("", arms, [seeds, *SHOWN])
    p = holm(last)
    yield from (after_the_last(last, metric, p) for metric in METRICS)
    by_round = maker.by(rows[rows["round"].isin(ROUNDS)], "round")
    found = [((f"{row.first} − {row.second}", number), row) for pair in EFFECTS
             for number, now in sorted(by_round.items())
             for row in compared(now, NLL, pairs=[pair]).itertuples()]  # fmt: skip
    columns = [maker.effect(NLL), maker.BETTER, maker.P, *maker.RANKS]
    yield maker.table(("pair", "round"), found, columns)
    if (results / DRAWS).exists():
        yield draws_table(pd.read_csv(results / DRAWS))


def facts(results: Path) -> Iterator[float]:
    """Yield what could be seen in NLL, and the mean NLL of each setting tried on CIFAR-10."""
    for row in compared(result_rows(read(results)), NLL).itertuples():
        yield from (maker.detectable(row), maker.equivalence(row, BOUND))
    if (choice := results.with_name(f"{results.name}-choice")).is_dir():
        tried = maker.last(choice).groupby(["lr", "pixels"])["nll"]
        yield from (*tried.mean(), *tried.first())


def picture(results: Path) -> maker.Figure:
    """Return each effect on the NLL by round, and every pair after the last round."""
    rows = read(results)
    figure, (by_round, at_end) = maker.panels(10.0, 3.6, 1, 2)
    colours = maker.BLUE, maker.GREEN, maker.ORANGE, maker.GREY
    later = maker.by(rows[rows["round"] > 0], "round")
    for (pair, effect), color in zip(EFFECTS.items(), colours, strict=True):
        every = [row for now in later.values() for row in
                 maker.pairs(now, [pair], NLL, "arm").values()]  # fmt: skip
        if every:
            found = pd.DataFrame(every)
            by_round.plot([*later], found["mean"], color=color, label=effect)
            band = found["low"], found["high"]
            by_round.fill_between([*later], *band, color=color, alpha=0.15, linewidth=0)
    by_round.axhline(0, color="black", linewidth=1)
    by_round.set(xlabel="Round", ylabel="NLL less WB's")
    maker.log_ticks(by_round, ROUNDS)
    by_round.legend(title="RKLB and WB differ in", fontsize=8, frameon=False)
    maker.draw_differences(at_end, NLL, maker.pairs(result_rows(rows), DIFFER, NLL, "arm"))
    at_end.set_xlabel("NLL of the first less the second's; blue: first ahead")
    return figure
