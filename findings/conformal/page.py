"""Sets and intervals made in several ways: what docs/results/conformal.md shows."""

from collections.abc import Iterator
from math import ceil
from pathlib import Path
from typing import Any

import pandas as pd
from scipy.stats import beta

from fedbary.report.results import Metric
from fedbary.scores.stats import corrected
from findings import maker

WAYS = {
    "central": "all scores in one place",
    "sum": "sum of histograms",
    "class": "sum, `conformal_by=class`",
    "weighted": "the same, `--site`",
    "site": "sum, `--site`",
    "alone": "each client alone",
    "mean of quantiles": "mean of the clients' quantiles",
}
"""Each way, and what the page calls it."""

DRAWN = ("sum", "class", "weighted", "site", "alone")
NOMINAL, POINT, PART = 0.9, 0.01, 0.02
"""The level, and how far coverage and size may be from it, or from the central size."""


def read(results: Path) -> pd.DataFrame:
    """Return the scores, a row a run and a way."""
    return pd.read_csv(results / "scores.csv")


def facts(results: Path) -> Iterator[float]:
    """Yield the numbers of the page's sentences that its tables have not."""
    rows = read(results)
    yield 1.6  # points: the standard error of a rate of 90 % of 360 examples
    for n in (rows["examples"].min(), rows["examples"].max()):
        rank = ceil((n + 1) * NOMINAL)
        coverage = beta(rank, n + 1 - rank)
        yield from (100 * coverage.mean(), 100 * coverage.std())
    yield from (100 * abs(rows["coverage"] - NOMINAL)).tolist()
    for way in WAYS:
        mean = rows[rows["way"] == way].groupby(["data", "split"])[["coverage", "size"]].mean()
        yield from (*(100 * mean["coverage"]), *mean["size"])
    for column, scale in (("worst_client", 100), ("size", 1)):
        found = list(_by_class(rows, column, scale))
        yield from corrected([row.t_test for row in found])
        for row in found:
            yield from (row.mean, row.low, row.high, row.t_test)


def _by_class(rows: pd.DataFrame, column: str, scale: float) -> Iterator[Any]:
    """Yield thresholds by class less one threshold, over seeds, for each set and split."""
    for _, own in rows[rows["data"] != "kin8nm"].groupby(["data", "split"]):
        yield maker.of_pair(own.assign(side=own["way"]), ("class", "sum"),
                            Metric(column, "", scale))  # fmt: skip


def tables(results: Path) -> Iterator[str]:
    """Yield the targets and the ways."""
    targets, ways = {}, {}
    for place, runs in maker.by(read(results), "data", "split").items():
        of = maker.by(runs, "way")
        found, central = of["sum"], of["central"]
        ratio = found["size"].mean() / central["size"].mean()
        right = abs(found["coverage"].mean() - NOMINAL) <= POINT and ratio <= 1 + PART
        coverage = (central["coverage"], found["coverage"], found["test_coverage"])
        targets[place] = [
            f"{len(found)}", f"{found['examples'].iloc[0]:,}", *map(_percent, coverage),
            f"{100 * (ratio - 1):+.2f}", "met" if right else "missed",
        ]  # fmt: skip
        for way in filter(of.__contains__, WAYS):
            held, size = of[way], of[way]["size"].mean()
            is_number = held["worst_class"].equals(held["coverage"])
            ways[*place, WAYS[way]] = [
                _percent(held["coverage"]), "–" if is_number else _percent(held["worst_class"]),
                _percent(held["worst_client"]),
                f"{size / central['size'].mean() if is_number else size:.2f}",
            ]  # fmt: skip
    head = ["seeds", "examples", "central, coverage %", "sum, coverage %"]
    head += ["sum, on the test set %", "size beside central %", "target"]
    yield maker.cells(("data", "split"), head, targets)
    head = ["coverage %", "worst class %", "worst client %", "size"]
    yield maker.cells(("data", "split", "way"), head, ways)


def _percent(column: pd.Series) -> str:
    return f"{100 * column.mean():.1f} ± {100 * column.std():.1f}"


def picture(results: Path) -> maker.Figure:
    """Return the mean set sizes, and the worst client's coverage, of each way and split."""
    rows = read(results)
    rows = rows[rows["data"] != "kin8nm"]
    places = list(maker.by(rows, "data", "split"))
    figure, panels = maker.panels(8.0, 3.6, 1, 2, sharey=True)
    colours = maker.BLUE, maker.SKY, maker.GREEN, maker.ORANGE, maker.RED
    for axes, column, factor in zip(panels, ("size", "worst_client"), (1, 100), strict=True):
        mean = rows.groupby(["data", "split", "way"])[column].mean() * factor
        for number, (way, color) in enumerate(zip(DRAWN, colours, strict=True)):
            at = [place + 0.16 * (number - 2) for place in range(len(places))]
            name = WAYS[way].replace("`", "")
            axes.plot([mean[(*place, way)] for place in places], at, "o", color=color, label=name)
        maker.name_rows(axes, [" ".join(place) for place in places])
    panels[0].set_xlabel("classes a set")
    panels[1].set_xlabel("coverage of the worst client (%)")
    panels[1].axvline(100 * NOMINAL, color="black", linewidth=0.8, linestyle="--")
    maker.legend_below(figure, 3)
    return figure
