"""The best settings: RKLB beside FedAvg, each with settings of its own, seed by seed.

Tables and picture of docs/results/best.md; the folders within are of runs that chose the settings.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from fedbary.report.results import (
    ACCURACY,
    BRIER,
    DETECTION,
    ECE_15,
    ECE_100,
    MAIN,
    NLL,
    Metric,
    difference,
    format_wins,
    marked,
)
from fedbary.study.table import read_table
from findings import maker
from findings.maker import by_seed, of_pair
from findings.published import PERSONAL, PRINTED, published, table1

RULES = ("RKLB", "FedAvg")
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

CHOICES = {
    "fashionmnist": ("choice", "choice-rates", "choice-length", "choice-decay"),
    "cifar10": tuple(f"choice-cifar10{e}" for e in ("", "-rates", "-batches", "-decay", "-length")),
}
"""The folders within, of runs on validation data that chose a data set's settings."""

TRIED = {
    "local_epochs": "local epochs", "batch_size": "batch", "normalise": "normalise",
    "pixels": "pixels", "augment": "augment", "server_momentum": "server's momentum",
    "kl_weight": "KL weight", "weight_decay": "weight decay", "lr": "lr",
}  # fmt: skip
"""The settings that were tried, and what the tables call them."""


def sides(rows: pd.DataFrame) -> Iterator[tuple[str, list[pd.DataFrame]]]:
    """Yield each data set with its runs, rule by rule."""
    for dataset in NAMES:
        yield dataset, [maker.where(rows, dataset=dataset, rule=rule) for rule in RULES]


def _untempered(side: pd.DataFrame) -> pd.DataFrame:
    """Return scores without the clients' temperature, which is there after the last round."""
    own = [column for column in side if column.startswith("untempered.")]
    plain = {name: side[column].fillna(side[name]) for column in own
             for name in [column.removeprefix("untempered.")]}  # fmt: skip
    return side.assign(**plain)


def headline(last: pd.DataFrame) -> str:
    """Return mean ± standard deviation of both rules on each data set, the best in bold."""
    body: list[tuple[Any, Any]] = []
    for dataset, both in sides(last):
        rows = {}
        for rule, side in zip(RULES, both, strict=True):
            rows[rule] = _untempered(side)
            if "untempered.nll" in side and side["untempered.nll"].notna().any():
                rows[f"{rule}, T"] = side
        columns = [
            marked(
                metric, [by_seed(side, metric).mean() for side in rows.values()],
                [metric.show(side[metric.column]) for side in rows.values()],
            )
            for metric in MAIN
        ]  # fmt: skip
        first = both[0].iloc[0]
        epochs = f"{first['rounds']} rounds × {first['local_epochs']} epochs"
        heads = [f"{NAMES[dataset]}, {epochs}", *[""] * len(rows)]
        body += zip(zip(heads, rows, strict=False), zip(*columns, strict=True), strict=True)
    return maker.cells(("data set", ""), [metric.label for metric in MAIN], body)


def targets_table(last: pd.DataFrame) -> str:
    """Return the scores at every seed beside the targets, those that meet them in bold."""
    rows = {}
    for dataset, both in sides(last):
        for metric, target in TARGETS[dataset].items():
            wanted = f"{metric.label} {'≤' if metric.lower_is_better else '≥'} "
            wanted += f"{target:.{metric.decimals}f}"
            for rule, side in zip(RULES, both, strict=True):
                scores = by_seed(side, metric).sort_index()
                sign = 1 if metric.lower_is_better else -1
                rows[NAMES[dataset], wanted, rule] = [
                    f"**{shown}**" if sign * score <= sign * target else shown
                    for score in (*scores, scores.mean())
                    for shown in [f"{score:.{metric.decimals}f}"]
                ]
    seeds = [f"seed {seed}" for seed in sorted(set(last["seed"]))]
    return maker.cells(("", "target", ""), [*seeds, "mean"], rows)


def chance_table(last: pd.DataFrame) -> str:
    """Return both ECEs beside what a calibrated model of the same confidences has by chance."""
    columns = [
        each
        for metric in (ECE_15, ECE_100)
        for by_chance in [replace(metric, column=f"by_chance.{metric.column}")]
        for each in (metric, replace(by_chance, label="*by chance*"))
    ]
    rows = [((NAMES[dataset], rule), side) for dataset, both in sides(last)
            for rule, side in zip(RULES, both, strict=True)]  # fmt: skip
    return maker.table(("", ""), rows, columns)


def differences_table(last: pd.DataFrame) -> str:
    """Return RKLB − FedAvg over the seeds, with the clients' temperature where they fit one."""
    rows = [
        ((NAMES[dataset], metric.label), of_pair(_sided(both), RULES, metric))
        for dataset, both in sides(last)
        for metric in (ACCURACY, NLL, ECE_15, ECE_100, BRIER, DETECTION[0])
    ]
    first = ("RKLB − FedAvg [95 %]", difference), ("RKLB better", format_wins)
    return maker.table(("", ""), rows, [*first, maker.P, maker.seen("seen from")])


def _sided(both: list[pd.DataFrame]) -> pd.DataFrame:
    return pd.concat(both).assign(side=lambda rows: rows["rule"])


def detection_table(last: pd.DataFrame) -> str:
    """Return how well foreign images are told from the test set's, by what each rule has for it.

    The difference is RKLB's mutual information less FedAvg's entropy, which a user of FedAvg has.
    """
    entropy, mutual = DETECTION
    rows = {}
    for dataset, (gaussian, plain) in sides(last):
        rivals = plain.assign(**{mutual.column: plain[entropy.column]})
        found = of_pair(_sided([gaussian, rivals]), RULES, mutual)
        rows[NAMES[dataset]] = (
            entropy.show(plain[entropy.column]), entropy.show(gaussian[entropy.column]),
            mutual.show(gaussian[mutual.column]), difference(found), maker.P[1](found),
        )  # fmt: skip
    heads = ["FedAvg, entropy", "RKLB, entropy", "RKLB, mutual information"]
    heads += ["mutual information − FedAvg's entropy [95 %]", "p, t-test"]
    return maker.cells("AUROC %", heads, rows)


def papers_table(last: pd.DataFrame) -> str:
    """Return RKLB beside BA-BFL's best number of each column, and beside its rivals'."""
    rows = {}
    for dataset, (gaussian, _) in sides(last):
        for metric, printed in PRINTED.items():
            ours = by_seed(gaussian, metric)
            order = maker.where(table1(), dataset=dataset, metric=printed).sort_values(
                "mean", ascending=metric.lower_is_better
            )
            theirs = [(order["mean"].iloc[0], order["std"].iloc[0])]
            theirs += [published(dataset, 3, rule, printed) for rule in PERSONAL]
            rows[NAMES[dataset], metric.label] = [
                metric.show(gaussian[metric.column]), *(_beside(metric, ours, *e) for e in theirs)
            ]  # fmt: skip
    heads = ["RKLB, ours", "BA-BFL's Table 1, the best of the column", *PERSONAL]
    return maker.cells(("", ""), heads, rows)


def _beside(metric: Metric, ours: pd.Series, mean: float, std: float) -> str:
    if math.isnan(mean):
        return "–"
    error = math.sqrt((std**2 + ours.var()) / len(ours))
    less = f"{ours.mean() - mean:+.{metric.decimals}f} ± {error:.{metric.decimals}f}"
    return f"{mean:.2f} ± {std:.2f}: {less}"


def choice_table(results: Path, dataset: str) -> str:
    """Return what was tried for each rule on validation data, and the NLL at the clients' T.

    Of the settings those are shown that were not the same in all runs.
    """
    runs = pd.concat(maker.last(results / folder) for folder in CHOICES[dataset])
    runs["kl_weight"] = runs["kl_weight"].where(runs["bayesian_layers"] > 0)
    shown = pd.DataFrame({"": runs["rule"], "rounds": runs["rounds"].map("{:.0f}".format)})
    for setting, label in TRIED.items():
        if runs[setting].nunique() > 1:
            shown[label] = runs[setting].map(_said)
    shown["NLL"] = runs["nll"].map("{:.4f}".format)
    is_best = runs["nll"] == runs.groupby("rule")["nll"].transform("min")
    bold = shown.where(~is_best, "**" + shown + "**").replace("****", "")
    rows = [row for rule in RULES for row in bold[runs["rule"] == rule].values.tolist()]
    return maker.cells("", list(shown)[1:], [(row[0], row[1:]) for row in rows])


def _said(value: object) -> str:
    """Return a setting's value in a table; "" if the run has none."""
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:g}"
    return str(value).lower()


def tables(results: Path) -> Iterator[str]:
    """Yield all tables."""
    last = maker.last(results)
    for made in (headline, differences_table, detection_table, targets_table, chance_table):
        yield made(last)
    yield papers_table(last)
    yield from (choice_table(results, dataset) for dataset in NAMES)


def facts(results: Path) -> Iterator[float]:
    """Yield what the page's sentences say beside its tables."""
    last = maker.last(results)
    yield from (
        last["temperature"].groupby([last["dataset"], last["rule"]]).agg(["min", "max"]).stack()
    )
    for dataset, both in sides(last):
        yield from (maker.equivalence(of_pair(_sided(both), RULES, NLL), BOUND), BOUND)
        yield from MOONSHOTS[dataset]
        for metric, target in TARGETS[dataset].items():
            ours, theirs = (by_seed(side, metric) for side in both)
            yield from ours - theirs
            for side in (ours, theirs):
                yield from (*(side - target), side.mean() - target)
    yield by_seed(maker.where(last, rule="FedAvg", dataset="fashionmnist"), ECE_15)[0]
    tried = pd.concat(maker.last(results / folder) for folder in CHOICES["cifar10"])
    tried = tried[tried["rule"] == "FedAvg"]
    yield from tried["temperature"].dropna()
    for _, alike in tried.groupby(["rounds", "weight_decay"]):
        yield from alike["nll"] - alike["nll"].min()


def picture(results: Path) -> maker.Figure:
    """Return each score by round, a line a rule: the mean over seeds, and all seeds as a band."""
    rows = _untempered(read_table(results))
    rows, shown = rows[rows["round"] > 0], (ACCURACY, NLL, ECE_15)
    figure, panels = maker.panels(9.0, 5.2, len(NAMES), len(shown))
    for axes, (dataset, metric) in zip(panels, product(NAMES, shown), strict=True):
        own = maker.where(rows, dataset=dataset)
        maker.courses(axes, own, "rule", dict(zip(RULES, RULES, strict=True)), "round", metric,
                      "range")  # fmt: skip
        maker.zoom(axes, metric.scale * own.loc[own["round"] >= 5, metric.column])
        axes.set(xlabel="Round", title=NAMES[dataset])
    for axes in panels[len(shown) - 1 :: len(shown)]:
        axes.legend(fontsize=8)
    return figure
