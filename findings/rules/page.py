"""Whether the rule matters: pairs of rules over seeds, by score and by round.

It makes the tables of docs/results/rules.md from the runs of `findings/rules` and from
what `findings.rules.draws` wrote, and draws `picture.png` beside them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from fedbary.figures.sheet import BLUE, GREEN, GREY, ORANGE, open_frame, sheet
from fedbary.report.cells import ACCURACY, BRIER, ECE_15, ECE_100, NLL, Metric
from fedbary.report.differences import better, difference, differences, p_value
from fedbary.report.differences import pairs_table as tested
from fedbary.report.markup import markdown_table
from fedbary.scores.stats import corrected
from fedbary.study.table import read_table, result_rows
from findings import _page
from findings._pairs import SEED, detectable, equivalence, of_pair

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
SHOWN = (
    ACCURACY,
    NLL,
    ECE_15,
    ECE_100,
    BRIER,
    Metric("uncertainty.epistemic", "epistemic, nats", 1, 4),
)
BOUND = 0.01
"""The difference in NLL below which two rules are taken for equal."""

ROUNDS = (1, 2, 5, 10, 20, 30, 40)

DRAWS = "draws.csv"
"""The scores of runs whose posteriors were kept, by number of draws."""

DRAWN = (ECE_15, ECE_100)
"""What is shown of them."""


def read(results: Path) -> pd.DataFrame:
    """Return the rows of all rounds, with a column `arm`: the rule, or `AGAIN`."""
    rows = read_table(results)
    return rows.assign(arm=rows["rule"].mask(rows["replicate"] > 0, AGAIN))


def _pairs_in(rows: pd.DataFrame) -> list[tuple[str, str]]:
    """Return the pairs of which both have runs."""
    return [pair for pair in DIFFER if set(pair) <= set(rows["arm"])]


def _sided(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(side=rows["arm"])


def arms_table(last: pd.DataFrame) -> str:
    """Return mean ± standard deviation of every arm, by NLL."""
    order = last.groupby("arm")["nll"].mean().sort_values().index
    body = []
    for arm in order:
        runs = last[last["arm"] == arm]
        body.append([arm, str(len(runs)), *(metric.show(runs[metric.column]) for metric in SHOWN)])
    return markdown_table(["", "seeds", *(metric.label for metric in SHOWN)], body)


def compared(rows: pd.DataFrame, metric: Metric, pairs: Sequence[tuple[str, str]]) -> pd.DataFrame:
    """Return how far pairs of arms lie apart, with three tests over the seeds."""
    scores = rows[["arm", *SEED, metric.column]].rename(columns={"arm": "side"})
    return differences(scores, pairs, [metric], SEED, SEED)


def holm(last: pd.DataFrame) -> dict[tuple[str, str, str], float]:
    """Return p of the t-tests of the pairs in `TESTED` and all scores, corrected for their number.

    By the score's column and the pair.
    """
    pairs = [pair for pair in _pairs_in(last) if pair in TESTED]
    found = {
        (metric.column, row.first, row.second): row.t_test
        for metric in METRICS
        for row in compared(last, metric, pairs).itertuples()
    }
    return dict(zip(found, corrected([*found.values()]), strict=True))


def pairs_table(last: pd.DataFrame, metric: Metric, p: Mapping[tuple[str, str, str], float]) -> str:
    """Return every pair's difference after the last round, with `holm`'s p."""
    found = compared(last, metric, _pairs_in(last))
    pairs = [*zip(found["first"], found["second"], strict=True)]
    head, body = tested(found, {"they differ in": [DIFFER[pair] for pair in pairs]})
    place = head.index("p, t-test") + 1
    for row, pair in zip(body, pairs, strict=True):
        row.insert(place, p_value(p.get((metric.column, *pair), math.nan)))
    return markdown_table([*head[:place], "p, Holm", *head[place:]], body)


def rounds_table(rows: pd.DataFrame, metric: Metric) -> str:
    """Return the differences of what tells the effects apart, round by round."""
    shown = rows.loc[rows["round"].isin(ROUNDS), ["arm", "round", *SEED, metric.column]]
    found = pd.concat(
        compared(now, metric, [pair]).assign(round=number)
        for pair in EFFECTS
        if pair in _pairs_in(rows)
        for number, now in shown.groupby("round")
    )
    return markdown_table(*tested(found, {"round": found["round"].tolist()}))


def draws_table(rows: pd.DataFrame) -> str:
    """Return every pair's differences in ECE at each number of draws."""
    head = ["pair", "draws"]
    for metric in DRAWN:
        head += [f"{metric.label} [95 %]", "first better", "p, t-test"]
    body = []
    for pair in _pairs_in(rows):
        for draws in sorted(set(rows["draws"])):
            at = rows[rows["draws"] == draws]
            cells = []
            for metric in DRAWN:
                found = of_pair(_sided(at), pair, metric)
                cells += [difference(found), better(found), p_value(found.t_test)]
            body.append([f"{pair[0]} − {pair[1]}", str(draws), *cells])
    return markdown_table(head, body)


def tables(results: Path) -> str:
    """Return all tables in Markdown."""
    rows = read(results)
    last = result_rows(rows)
    parts = [f"### Rules\n\n{arms_table(last)}"]
    p = holm(last)
    parts += [f"### {metric.label}\n\n{pairs_table(last, metric, p)}" for metric in METRICS]
    parts.append(f"### NLL by round\n\n{rounds_table(rows, NLL)}")
    if (results / DRAWS).exists():
        parts.append(f"### More draws\n\n{draws_table(pd.read_csv(results / DRAWS))}")
    return "\n\n".join(parts)


def facts(results: Path) -> Iterator[float]:
    """Yield what could be seen in NLL, and the mean NLL of each setting tried on CIFAR-10."""
    last = result_rows(read(results))
    for row in compared(last, NLL, _pairs_in(last)).itertuples():
        yield from (detectable(row), equivalence(row, BOUND))
    if (choice := results.with_name(f"{results.name}-choice")).is_dir():
        tried = result_rows(read_table(choice)).groupby(["lr", "pixels"])["nll"]
        yield from (*tried.mean(), *tried.first())


def picture(results: Path) -> Figure:
    """Return each effect on the NLL by round, and every pair after the last round."""
    rows = read(results)
    last = result_rows(rows)
    figure = sheet(10.0, 3.6)
    by_round, at_end = figure.subplots(1, 2)
    numbers = sorted(set(rows["round"]) - {0})
    for (pair, effect), color in zip(EFFECTS.items(), (BLUE, GREEN, ORANGE, GREY), strict=True):
        if pair not in _pairs_in(last):
            continue
        found = [of_pair(_sided(rows[rows["round"] == number]), pair, NLL) for number in numbers]
        by_round.plot(numbers, [each.mean for each in found], color=color, label=effect)
        low, high = [each.low for each in found], [each.high for each in found]
        by_round.fill_between(numbers, low, high, color=color, alpha=0.15, linewidth=0)
    by_round.axhline(0, color="black", linewidth=1)
    by_round.set(xlabel="Round", ylabel="NLL less WB's", xscale="log")
    by_round.set_xticks(ROUNDS, map(str, ROUNDS))
    by_round.minorticks_off()
    above = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "ncols": len(EFFECTS)}
    by_round.legend(title="RKLB and WB differ in", fontsize=8, frameon=False, **above)
    by_round.grid(alpha=0.3)
    open_frame(by_round)
    pairs = {
        f"{one} − {two}": of_pair(_sided(last), (one, two), NLL) for one, two in _pairs_in(last)
    }
    _page.draw_differences(at_end, NLL, pairs)
    at_end.set_xlabel("NLL of the first less the second's; blue: first ahead")
    return figure
