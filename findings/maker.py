"""What makes the tables and pictures of result pages from a few lines of data.

A page's script reads rows, groups them, and names columns. A column is a `Metric`, shown as mean ±
standard deviation, or a heading with a function from a row's value to its cell. A row's value is a
group of runs, or a difference between two sides, as `pairs` gives it.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import mode
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import optimize, stats

from fedbary.figures.document import markdown_table, write_small
from fedbary.figures.sheet import BLUE, DPI, GREEN, GREY, ORANGE, RED, SKY, open_frame, sheet
from fedbary.report.results import (
    Metric,
    difference,
    differences,
    format_wins,
    p_value,
)
from fedbary.scores.stats import SignedRank, corrected, signed_rank
from fedbary.study.table import read_table, result_rows

PICTURE = "picture.png"
"""The picture's name in the folder of the results."""

SEED = ("seed",)
AT_T = Metric("nll", "NLL at T")
EPISTEMIC = Metric("uncertainty.epistemic", "epistemic, nats", 1, 4)

COLOURS = {
    "RKLB": BLUE, "LDA": BLUE, "Ridge": SKY, "sites": GREEN, "FedAvg": RED, "SCAFFOLD": ORANGE,
    "adapters": SKY, "Gaussian": GREEN, "one place": GREY,
}  # fmt: skip
"""The lines of pictures, by what they show."""

Column = Metric | tuple[str, Callable[[Any], str]]
"""A column of a table: its heading, and a cell of a row's value."""

# Rows


def last(folder: Path) -> pd.DataFrame:
    """Return the result of every run of a folder."""
    return result_rows(read_table(folder)).copy()


def by(rows: pd.DataFrame, *columns: str) -> dict[Any, pd.DataFrame]:
    """Return the rows of each value of columns, in the order of the rows."""
    key = columns[0] if len(columns) == 1 else list(columns)
    return dict(list(rows.groupby(key, sort=False)))


def where(rows: pd.DataFrame, **values: object) -> pd.DataFrame:
    """Return the rows that have these values."""
    return rows[(rows[list(values)] == pd.Series(values)).all(axis=1)]


def by_seed(rows: pd.DataFrame, metric: Metric) -> pd.Series:
    """Return a metric in its unit, by seed."""
    return metric.scale * rows.set_index("seed")[metric.column]


def of_pair(rows: pd.DataFrame, pair: Sequence[str], metric: Metric) -> Any:
    """Return the row of `differences` on one pair of the column `side` and one metric."""
    return next(differences(rows, [(pair[0], pair[1])], [metric], SEED).itertuples())


def pairs(
    rows: pd.DataFrame, several: Iterable[tuple[str, str]], metric: Metric, side: str = "side"
) -> dict[str, Any]:
    """Return each pair's difference over the seeds, by `first − second`; Holm's p is over all."""
    scores = rows[[*SEED, metric.column]].assign(side=rows[side])
    found = differences(scores, [*several], [metric], SEED)
    return {f"{row.first} − {row.second}": row for row in found.itertuples()}


# Tests


def no_worse(found: Any, bound: float) -> float:
    """Return the p of a one-sided t-test that the first side is not worse by a bound or more.

    A bound of 0 asks whether it is better.
    """
    return _one_sided(found, found.mean if found.metric.lower_is_better else -found.mean, bound)


def equivalence(found: Any, bound: float) -> float:
    """Return the p of two one-sided t-tests that a mean difference lies within ± bound.

    Source: Schuirmann, A comparison of the two one-sided tests procedure, 1987.
    """
    return _one_sided(found, abs(found.mean), bound)


def detectable(found: Any, power: float = 0.8) -> float:
    """Return the least mean difference that a paired t-test at 5 % shows with this power.

    It takes the differences' standard deviation for the true one. A smaller difference is likely to
    go unseen: that a test shows none says nothing of it.
    """
    return _least(found.pairs, power) * _deviation(found)


@cache
def _least(pairs: int, power: float) -> float:
    """Return the least difference that is shown, in standard deviations of the differences."""
    limit = stats.t(pairs - 1).ppf(0.975)

    def missing(difference: float) -> float:
        shift = difference * math.sqrt(pairs)
        return float(stats.nct.cdf(limit, pairs - 1, shift)) - (1 - power)

    return float(optimize.brentq(missing, 0, (2 * limit + 3) / math.sqrt(pairs)))


def _deviation(found: Any) -> float:
    reach = stats.t(found.pairs - 1).ppf(0.975)
    return float((found.high - found.low) / (2 * reach) * math.sqrt(found.pairs))


def _one_sided(found: Any, worse: float, bound: float) -> float:
    error = _deviation(found) / math.sqrt(found.pairs)
    return float(stats.t(found.pairs - 1).sf((bound - worse) / error))


# Tables


def table(
    head: str | Sequence[str],
    rows: Mapping[Any, Any] | Iterable[tuple[Any, Any]],
    columns: Iterable[Column],
) -> str:
    """Return a table in Markdown: a row for each pair of names and a value.

    A name that is a tuple fills several columns. Of no runs a metric shows a dash.
    """
    columns, body = list(columns), []
    for names, value in rows.items() if isinstance(rows, Mapping) else rows:
        lead = map(str, names) if isinstance(names, tuple) else [str(names)]
        body.append([*lead, *(_cell(column, value) for column in columns)])
    heads = [head] if isinstance(head, str) else head
    labels = (each.label if isinstance(each, Metric) else each[0] for each in columns)
    return markdown_table([*heads, *labels], body)


def _cell(column: Column, value: Any) -> str:
    if not isinstance(column, Metric):
        return column[1](value)
    return column.show(value[column.column]) if len(value) else "–"


def of(label: str, metric: Metric, **values: object) -> Column:
    """Return the column of a metric of those of a row's runs that have some values."""
    return label, lambda runs: _cell(metric, where(runs, **values))


def mean(label: str, metric: Metric, **values: object) -> Column:
    """Return the column of the mean of a metric of those runs that have some values; no spread."""

    def shown(runs: pd.DataFrame) -> str:
        found = metric.scale * where(runs, **values)[metric.column]
        return f"{found.mean():.{metric.decimals}f}" if len(found) else "–"

    return label, shown


def tried(rows: pd.DataFrame, varied: str, score: str) -> str:
    """Return the mean score of each value of a setting, behind the value."""
    means = rows.groupby(varied)[score].mean()
    return ", ".join(f"{value:g}: {mean:.4f}" for value, mean in means.items())


def cells(head: str | Sequence[str], heads: Sequence[str], rows: Any) -> str:
    """Return a table whose rows' values are their cells."""
    return table(head, rows, [(name, lambda row, at=at: row[at]) for at, name in enumerate(heads)])


def effect(label: str | Metric) -> Column:
    """Return the column of differences with their 95 % intervals."""
    name = label.label if isinstance(label, Metric) else label
    return f"{name} [95 %]", difference


P: Column = "p, t-test", lambda found: p_value(found.t_test)
HOLM: Column = "p, Holm", lambda found: p_value(found.holm)
P_AND_HOLM = (P, HOLM)
BETTER: Column = "first better", format_wins
RANKS: tuple[Column, Column] = (
    ("p, Wilcoxon", lambda found: p_value(found.wilcoxon)),
    ("signed-rank: first / equal / second (equal: within)", lambda found: _shares(found)),
)
SEEDS: Column = "seeds", lambda found: f"{found.pairs}"


def seen(label: str = "least effect seen", more: int = 0) -> Column:
    """Return the column of the least differences that are seen, to so many digits more."""
    return label, lambda found: f"{detectable(found):.{found.metric.decimals + more}f}"


def ranked(found: pd.DataFrame, rows: pd.DataFrame, points: Sequence[str] = SEED) -> pd.DataFrame:
    """Return rows of `differences` with the Bayesian signed-rank test over points, in `test`."""

    def test(row: Any) -> SignedRank:
        column = row.metric.column
        one, two = (
            rows[rows["side"] == side].groupby([*points], sort=False)[column].mean().dropna()
            for side in (row.first, row.second)
        )
        both = one.index.intersection(two.index, sort=False)
        scores = ([*(row.metric.scale * side[both])] for side in (one, two))
        return signed_rank(*scores, bool(row.metric.lower_is_better))

    return found.assign(test=[test(row) for row in found.itertuples()])


def _shares(found: Any) -> str:
    """Return the test's probabilities, and its points if they outnumber the pairs."""
    test = found.test
    points = "" if test.pairs == found.pairs else f", {test.pairs} points"
    shares = f"{test.first:.2f} / {test.equal:.2f} / {test.second:.2f}"
    return f"{shares} (± {test.rope:.{found.metric.decimals + 1}f}{points})"


def same(label: str, bound: float) -> Column:
    """Return the column of p of equivalence within a bound."""
    return label, lambda found: p_value(equivalence(found, bound))


def tests_table(head: str, metric: Metric, named: Mapping[str, Any], bound: float = 0.0) -> str:
    """Return differences with Holm's p over them all, and the least effect that was to be seen.

    With a bound also the p of equivalence. `named` has differences by their names.
    """
    holm = corrected([row.t_test for row in named.values()])
    rows = [
        (name, row._replace(holm=p)) for (name, row), p in zip(named.items(), holm, strict=True)
    ]
    between = [same(f"p, within ±{bound:g}", bound)] if bound else []
    shown = seen("least effect seen at 80 %", 1)
    return table(head, rows, [effect(metric), HOLM, *between, shown, SEEDS])


# Pictures


def draw(picture: Callable[[Path], Figure], results: Path) -> None:
    """Draw the picture of a results folder into it."""
    write_small(picture(results), results / PICTURE, DPI)


def panels(
    width: float, height: float, rows: int = 1, columns: int = 1, **shared: Any
) -> tuple[Figure, list[Axes]]:
    """Return a figure of a size in inches, and its panels, row by row."""
    figure = sheet(width, height)
    found = figure.subplots(rows, columns, squeeze=False, **shared)
    for axes in found.flat:
        open_frame(axes)
    return figure, list(found.flat)


def course(axes: Axes, x: pd.Series, values: pd.Series, spread: str = "", **look: Any) -> None:
    """Draw means of values by x: with their `std`, or with their `range` as a band."""
    groups = values.groupby(x)
    mean = groups.mean()
    bars = {"yerr": groups.std(), "capsize": 2} if spread == "std" else {}
    axes.errorbar(mean.index, mean, **{"fmt": "-", "markersize": 4, **bars, **look})
    if spread == "range":
        axes.fill_between(
            mean.index, groups.min(), groups.max(), color=look["color"], alpha=0.2, linewidth=0
        )


def courses(
    axes: Axes, rows: pd.DataFrame, side: str, names: Mapping[str, str], x: str, metric: Metric,
    spread: str = "", **look: Any,
) -> None:  # fmt: skip
    """Draw the course of a metric, a line for each of some named values of a column."""
    for value, name in names.items():
        own = where(rows, **{side: value})
        of_it = {"color": COLOURS[value], "label": name, **look}
        course(axes, own[x], metric.scale * own[metric.column], spread, **of_it)
    axes.set_ylabel(metric.label)


def zoom(axes: Axes, values: pd.Series) -> None:
    """Show the range of some values."""
    margin = 0.05 * (values.max() - values.min())
    axes.set_ylim(values.min() - margin, values.max() + margin)


def log_ticks(axes: Axes, ticks: Iterable[float], labels: Iterable[str] = ()) -> None:
    """Make a logarithmic axis with these ticks."""
    axes.set_xscale("log")
    axes.set_xticks([*ticks], [*labels] or [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()


def legend_below(figure: Figure, columns: int, title: str | None = None) -> None:
    """Give a figure one legend, that of its first panel."""
    look = {"loc": "outside lower center", "frameon": False, "fontsize": 8, "title": title}
    figure.legend(*figure.axes[0].get_legend_handles_labels(), ncols=columns, **look)


def name_rows(axes: Axes, names: Iterable[str]) -> None:
    """Name the rows of a panel, from the top."""
    axes.set_yticks(range(len([*names])), [*names])
    axes.set_ylim(len([*names]) - 0.5, -0.5)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)


def draw_rows(axes: Axes, named: Mapping[str, pd.Series]) -> None:
    """Draw values and their mean, a row for each name."""
    for row, values in enumerate(named.values()):
        axes.plot(values, [row] * len(values), "o", color=GREY, markersize=4, alpha=0.6)
        axes.plot(values.mean(), row, "|", color=BLUE, markersize=14, markeredgewidth=2)
    name_rows(axes, named)


def draw_differences(axes: Axes, metric: Metric, found: Mapping[str, Any]) -> None:
    """Draw mean differences with their 95 % intervals, a row each, from the top.

    Blue is an advantage of the first side, red one of the second, grey an interval with 0 in it.
    They are `Paired`, or rows of `differences`. A number of pairs that is not that of most rows
    stands beside.
    """
    usual = mode(pair.pairs for pair in found.values())
    for row, pair in enumerate(found.values()):
        color = GREY
        if pair.low > 0 or pair.high < 0:
            color = BLUE if (pair.mean < 0) == metric.lower_is_better else RED
        axes.plot([pair.low, pair.high], [row, row], color=color, linewidth=1.6)
        axes.plot(pair.mean, row, "o", color=color, markersize=5)
        if pair.pairs != usual:
            axes.annotate(f"{pair.pairs} pairs", (pair.mean, row - 0.12), ha="center", fontsize=7)
    axes.axvline(0, color="black", linewidth=1)
    name_rows(axes, found)
    axes.set_xlabel(metric.label)
    open_frame(axes)
