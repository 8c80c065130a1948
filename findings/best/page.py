"""The best settings: RKLB beside FedAvg, each with settings of its own, seed by seed.

It makes the tables of docs/results/best.md and of the README from the results of
`findings/best/grid.yaml`, and of the runs that chose its settings, in the folders within, and draws
`picture.png`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from fedbary.figures.sheet import BLUE, ORANGE, open_frame, sheet
from fedbary.report.cells import ACCURACY, BRIER, DETECTION, ECE_15, ECE_100, NLL, Metric, marked
from fedbary.report.differences import better, difference, differences, p_value
from fedbary.report.markup import markdown_table
from fedbary.study.table import read_table, result_rows
from findings._pairs import SEED, by_seed, detectable, equivalence, of_pair
from findings.best.choices import CHOICES, RULES, choice_table
from findings.published import PERSONAL, PRINTED, published, table1

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = {"fashionmnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}
TARGETS = {
    "fashionmnist": {ACCURACY: 90.0, ECE_15: 1.0, ECE_100: 1.5, NLL: 0.280},
    "cifar10": {ACCURACY: 69.0, ECE_15: 1.2, ECE_100: 2.0, NLL: 0.89},
}
"""What is to be reached at every seed and in the mean."""

MOONSHOTS = {"fashionmnist": (90.5, 0.27), "cifar10": (70.0, 0.87)}
"""Accuracy and NLL that were wished for beyond the targets."""

BOUND = 0.01
"""The difference in NLL below which two sides are taken for equal."""

ECE = (ECE_15, ECE_100)
DRAWN = (ACCURACY, NLL, ECE_15)


def read(results: Path) -> pd.DataFrame:
    """Return the rows of all rounds."""
    return read_table(results)


def _sides(rows: pd.DataFrame) -> Iterator[tuple[str, list[pd.DataFrame]]]:
    """Yield each data set with its runs, rule by rule."""
    for dataset in NAMES:
        of_it = rows[rows["dataset"] == dataset]
        yield dataset, [of_it[of_it["rule"] == rule] for rule in RULES]


def _as_drawn(side: pd.DataFrame, metric: Metric) -> pd.Series:
    """Return a metric without the clients' temperature, which is there after the last round."""
    column = f"untempered.{metric.column}"
    return side[column].fillna(side[metric.column]) if column in side else side[metric.column]


def _predictions(side: pd.DataFrame, metric: Metric) -> dict[str, Metric]:
    """Return the columns of a metric: without the clients' temperature, and with it if they fit."""
    untempered = replace(metric, column=f"untempered.{metric.column}")
    if untempered.column not in side or side[untempered.column].isna().all():
        return {"": metric}
    return {"": untempered, ", T": metric}


def headline(last: pd.DataFrame, metrics: Sequence[Metric] = (ACCURACY, ECE_15, NLL)) -> str:
    """Return mean ± standard deviation of both rules on each data set, the best in bold."""
    body = []
    for dataset, sides in _sides(last):
        names = [
            f"{rule}{at}"
            for rule, side in zip(RULES, sides, strict=True)
            for at in _predictions(side, ACCURACY)
        ]
        columns = []
        for metric in metrics:
            found = [(each, side) for side in sides for each in _predictions(side, metric).values()]
            means = [by_seed(side, each).mean() for each, side in found]
            shown = [each.show(side[each.column]) for each, side in found]
            columns.append(marked(metric, means, shown))
        first = sides[0].iloc[0]
        epochs = f"{first['rounds']} rounds × {first['local_epochs']} epochs"
        heads = [f"{NAMES[dataset]}, {epochs}", *[""] * len(names)]
        body += [list(row) for row in zip(heads, names, *columns, strict=False)]
    return markdown_table(["data set", "", *(metric.label for metric in metrics)], body)


def targets_table(last: pd.DataFrame) -> str:
    """Return the scores at every seed beside the targets, those that meet them in bold."""
    body = []
    seeds = sorted(set(last["seed"]))
    for dataset, sides in _sides(last):
        for metric, target in TARGETS[dataset].items():
            for rule, side in zip(RULES, sides, strict=True):
                scores = by_seed(side, metric).reindex(seeds)
                sign, number = (1, "≤") if metric.lower_is_better else (-1, "≥")
                cells = []
                for score in (*scores, scores.mean(skipna=False)):
                    if math.isnan(score):
                        cells.append("–")
                        continue
                    shown = f"{score:.{metric.decimals}f}"
                    cells.append(f"**{shown}**" if sign * score <= sign * target else shown)
                wanted = f"{metric.label} {number} {target:.{metric.decimals}f}"
                body.append([NAMES[dataset], wanted, rule, *cells])
    return markdown_table(["", "target", "", *(f"seed {seed}" for seed in seeds), "mean"], body)


def chance_table(last: pd.DataFrame) -> str:
    """Return both ECEs beside what a calibrated model of the same confidences has by chance."""
    body = []
    for dataset, sides in _sides(last):
        for rule, side in zip(RULES, sides, strict=True):
            pairs = [(each, replace(each, column=f"by_chance.{each.column}")) for each in ECE]
            cells = [metric.show(side[metric.column]) for pair in pairs for metric in pair]
            body.append([NAMES[dataset], rule, *cells])
    head = [name for metric in ECE for name in (metric.label, "*by chance*")]
    return markdown_table(["", "", *head], body)


def differences_table(last: pd.DataFrame) -> str:
    """Return RKLB − FedAvg over the seeds, with the clients' temperature where they fit one."""
    body = []
    metrics = (ACCURACY, NLL, ECE_15, ECE_100, BRIER, *DETECTION[:1])
    for dataset, sides in _sides(last):
        rows = pd.concat(sides).assign(side=lambda rows: rows["rule"])
        for row in differences(rows, [RULES], metrics, SEED).itertuples():
            cells = [difference(row), better(row), p_value(row.t_test)]
            cells.append(f"{detectable(row):.{row.metric.decimals}f}")
            body.append([NAMES[dataset], row.metric.label, *cells])
    head = ["RKLB − FedAvg [95 %]", "RKLB better", "p, t-test", "seen from"]
    return markdown_table(["", "", *head], body)


def detection_table(last: pd.DataFrame) -> str:
    """Return how well foreign images are told from the test set's, by what each rule has for it.

    The difference is RKLB's mutual information less FedAvg's entropy, which a user of FedAvg has.
    """
    entropy, mutual = DETECTION
    body = []
    for dataset, (gaussian, plain) in _sides(last):
        rivals = plain.assign(**{mutual.column: plain[entropy.column]})
        rows = pd.concat([gaussian, rivals]).assign(side=lambda rows: rows["rule"])
        found = of_pair(rows, RULES, mutual)
        shown = (entropy, plain), (entropy, gaussian), (mutual, gaussian)
        cells = [metric.show(side[metric.column]) for metric, side in shown]
        body.append([NAMES[dataset], *cells, difference(found), p_value(found.t_test)])
    head = ["AUROC %", "FedAvg, entropy", "RKLB, entropy", "RKLB, mutual information"]
    return markdown_table(
        [*head, "mutual information − FedAvg's entropy [95 %]", "p, t-test"], body
    )


def papers_table(last: pd.DataFrame) -> str:
    """Return RKLB beside BA-BFL's best number of each column, and beside its rivals'."""
    body = []
    for dataset, (gaussian, _) in _sides(last):
        for metric, printed in PRINTED.items():
            ours = by_seed(gaussian, metric)
            rows = table1()
            rows = rows[(rows["dataset"] == dataset) & (rows["metric"] == printed)]
            order = rows.sort_values("mean", ascending=metric.lower_is_better)
            theirs = {"best": (order["mean"].iloc[0], order["std"].iloc[0])} | {
                rule: published(dataset, 3, rule, printed) for rule in PERSONAL
            }
            cells = []
            for mean, std in theirs.values():
                if math.isnan(mean):
                    cells.append("–")
                    continue
                error = math.sqrt((std**2 + ours.var()) / len(ours))
                shown = f"{mean:.2f} ± {std:.2f}"
                less = f"{ours.mean() - mean:+.{metric.decimals}f} ± {error:.{metric.decimals}f}"
                cells.append(f"{shown}: {less}")
            body.append(
                [NAMES[dataset], metric.label, metric.show(gaussian[metric.column]), *cells]
            )
    return markdown_table(
        ["", "", "RKLB, ours", "BA-BFL's Table 1, the best of the column", *PERSONAL], body
    )


def tables(results: Path) -> str:
    """Return all tables in Markdown."""
    last = result_rows(read(results))
    parts = {
        "Scores": headline(last, (ACCURACY, ECE_15, ECE_100, NLL)),
        "Differences": differences_table(last),
        "Foreign images": detection_table(last),
        "Targets": targets_table(last),
        "What chance leaves": chance_table(last),
        "Papers": papers_table(last),
    } | {f"Choice, {name}": choice_table(results, dataset) for dataset, name in NAMES.items()}
    return "\n\n".join(f"### {title}\n\n{text}" for title, text in parts.items())


def facts(results: Path) -> Iterator[float]:
    """Yield what the page's sentences say beside its tables."""
    last = result_rows(read(results))
    yield from (
        last["temperature"].groupby([last["dataset"], last["rule"]]).agg(["min", "max"]).stack()
    )
    for dataset, (gaussian, plain) in _sides(last):
        both = pd.concat([gaussian, plain]).assign(side=lambda rows: rows["rule"])
        yield from (equivalence(of_pair(both, RULES, NLL), BOUND), BOUND)
        yield from MOONSHOTS[dataset]
        for metric, target in TARGETS[dataset].items():
            ours, theirs = by_seed(gaussian, metric), by_seed(plain, metric)
            yield from ours - theirs
            for side in (ours, theirs):
                yield from (*(side - target), side.mean() - target)
    yield by_seed(last[last["rule"] == "FedAvg"].query("dataset == 'fashionmnist'"), ECE_15)[0]
    tried = pd.concat(result_rows(read(results / folder)) for folder in CHOICES["cifar10"]).query(
        "rule == 'FedAvg'"
    )
    yield from tried["temperature"].dropna()
    for _, alike in tried.groupby(["rounds", "weight_decay"]):
        yield from alike["nll"] - alike["nll"].min()


def picture(results: Path) -> Figure:
    """Return each score by round, a line a rule: the mean over seeds, and all seeds as a band."""
    rows = read(results)
    figure = sheet(9.0, 2.6 * len(NAMES))
    grid = figure.subplots(len(NAMES), len(DRAWN), squeeze=False)
    for row, (dataset, sides) in zip(grid, _sides(rows[rows["round"] > 0]), strict=True):
        for axes, metric in zip(row, DRAWN, strict=True):
            for rule, side, color in zip(RULES, sides, (BLUE, ORANGE), strict=True):
                scores = _as_drawn(side, metric).groupby(side["round"])
                by_round = scores.agg(["mean", "min", "max"])
                by_round *= metric.scale
                axes.plot(by_round.index, by_round["mean"], color=color, label=rule)
                band = by_round["min"], by_round["max"]
                axes.fill_between(by_round.index, *band, color=color, alpha=0.2, linewidth=0)
            axes.set(xlabel="Round", ylabel=metric.label, ylim=_range(sides, metric))
            axes.grid(alpha=0.3)
            open_frame(axes)
        row[0].set_title(NAMES[dataset], loc="left")
        row[-1].legend(fontsize=8)
    return figure


def _range(sides: Sequence[pd.DataFrame], metric: Metric) -> tuple[float, float]:
    """Return an axis's range that holds the scores from the fifth round on."""
    later = pd.concat(_as_drawn(side[side["round"] >= 5], metric) for side in sides) * metric.scale
    margin = 0.05 * (later.max() - later.min())
    return later.min() - margin, later.max() + margin
