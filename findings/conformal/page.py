"""Sets and intervals made in several ways: what docs/results/conformal.md shows."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from scipy.stats import beta

from fedbary.figures.sheet import BLUE, GREEN, ORANGE, RED, SKY, open_frame, sheet
from fedbary.report.cells import Metric
from fedbary.report.markup import markdown_table
from fedbary.scores.stats import corrected
from findings._pairs import of_pair

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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

DRAWN = dict(zip(("sum", "class", "weighted", "site", "alone"), (BLUE, SKY, GREEN, ORANGE, RED),
                 strict=True))  # fmt: skip
NOMINAL, POINT, PART = 0.9, 0.01, 0.02
"""The level, and how far coverage and size may be from it, or from the central size."""


def read(results: Path) -> pd.DataFrame:
    """Return the scores, a row a run and a way."""
    return pd.read_csv(results / "scores.csv")


def tables(results: Path) -> str:
    """Return the targets and the ways, in Markdown."""
    rows = read(results)
    return f"{_targets(rows)}\n\n{_ways(rows)}"


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
        yield from (100 * mean["coverage"]).tolist()
        yield from mean["size"].tolist()
    for column, scale in (("worst_client", 100), ("size", 1)):
        found = list(_by_class(rows, column, scale))
        yield from corrected([row.t_test for row in found])
        for row in found:
            yield from (row.mean, row.low, row.high, row.t_test)


def _by_class(rows: pd.DataFrame, column: str, scale: float) -> Iterator[Any]:
    """Yield thresholds by class less one threshold, over seeds, for each set and split."""
    for _, own in rows[rows["data"] != "kin8nm"].groupby(["data", "split"]):
        yield of_pair(own.assign(side=own["way"]), ("class", "sum"), Metric(column, "", scale))


def _targets(rows: pd.DataFrame) -> str:
    body = []
    for (data, split), runs in rows.groupby(["data", "split"], sort=False):
        by = {way: of_way.set_index("seed") for way, of_way in runs.groupby("way")}
        found, central = by["sum"], by["central"]
        ratio = found["size"].mean() / central["size"].mean()
        right = abs(found["coverage"].mean() - NOMINAL) <= POINT and ratio <= 1 + PART
        body.append(
            [
                data,
                split,
                f"{len(found)}",
                f"{found['examples'].iloc[0]:,}",
                _percent(central["coverage"]),
                _percent(found["coverage"]),
                _percent(found["test_coverage"]),
                f"{100 * (ratio - 1):+.2f}",
                "met" if right else "missed",
            ]
        )
    head = ["data", "split", "seeds", "examples", "central, coverage %", "sum, coverage %"]
    return markdown_table(
        [*head, "sum, on the test set %", "size beside central %", "target"], body
    )


def _ways(rows: pd.DataFrame) -> str:
    body = []
    for (data, split), runs in rows.groupby(["data", "split"], sort=False):
        central = runs[runs["way"] == "central"]["size"].mean()
        for way, name in WAYS.items():
            held = runs[runs["way"] == way]
            if held.empty:
                continue
            size = held["size"].mean()
            is_number = held["worst_class"].equals(held["coverage"])
            body.append(
                [
                    data,
                    split,
                    name,
                    _percent(held["coverage"]),
                    "–" if is_number else _percent(held["worst_class"]),
                    _percent(held["worst_client"]),
                    f"{size / central:.2f}" if is_number else f"{size:.2f}",
                ]
            )
    head = ["data", "split", "way", "coverage %", "worst class %", "worst client %", "size"]
    return markdown_table(head, body)


def _percent(column: pd.Series) -> str:
    return f"{100 * column.mean():.1f} ± {100 * column.std():.1f}"


def picture(results: Path) -> Figure:
    """Return the mean set sizes, and the worst client's coverage, of each way and split."""
    rows = read(results)
    rows = rows[rows["data"] != "kin8nm"]
    places = list(dict.fromkeys(zip(rows["data"], rows["split"], strict=True)))
    figure = sheet(8.0, 3.6)
    panels = figure.subplots(1, 2)
    for axes, column, factor in zip(panels, ("size", "worst_client"), (1, 100), strict=True):
        mean = rows.groupby(["data", "split", "way"])[column].mean() * factor
        for number, (way, color) in enumerate(DRAWN.items()):
            where = [place + 0.16 * (number - 2) for place in range(len(places))]
            values = [mean[(*place, way)] for place in places]
            name = WAYS[way].replace("`", "")
            axes.plot(values, where, "o", color=color, markersize=5, label=name)
        axes.set_yticks(range(len(places)), [" ".join(place) for place in places])
        axes.invert_yaxis()
        open_frame(axes)
    panels[0].set_xlabel("classes a set")
    panels[1].set_xlabel("coverage of the worst client (%)")
    panels[1].axvline(100 * NOMINAL, color="black", linewidth=0.8, linestyle="--")
    panels[1].set_yticklabels([])
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3,
                  fontsize=8, frameon=False)  # fmt: skip
    return figure
