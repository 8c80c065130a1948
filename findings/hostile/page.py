"""What hostile clients do under each rule, with mixing and without: docs/results/hostile.md."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd

from fedbary.report.results import ACCURACY
from fedbary.study.table import read_table
from findings import maker

HONEST, TWO_CLASSES = "nobody attacks", "two classes a client"
ATTACKS = ["sign flip", "scaling", "variance collapse", "variance explosion", "inner product"]
CONDITIONS = [HONEST, *ATTACKS, "little is enough", TWO_CLASSES]
"""What a rule is tried under, in the tables' order."""

ARMS = ("RKLB, mixing", "WB, mixing", "MultiKrum", "Median", "TrimmedMean", "RKLB", "WB")
DATA_SETS = {"digits": "digits", "fashionmnist": "Fashion-MNIST"}
SEEDS = 3

LATE = 3
"""The last rounds whose mean accuracy is less of an accident than that of the very last."""

BESIDE = "nobody attacks, no mixing"
SIDES = {"attacked, the server reckons with three": 0.3, "with two": 0.2}
"""What of the clients the server takes for hostile, by the row's name; three of ten are."""

POINTS = replace(ACCURACY, decimals=1)


def read(results: Path) -> dict[str, tuple[pd.Series, pd.Series]]:
    """Return of each data set accuracies in per cent by arm, condition and seed: last, and late."""
    every = read_table(results)
    late = every[every["round"] > every["rounds"] - LATE].groupby("run")["accuracy"].mean()
    rows = maker.last(results)
    mixing = rows["mixing"].map({True: ", mixing", False: ""})
    condition = rows["attack"].str.replace("_", " ").replace("none", HONEST)
    rows = rows.assign(
        arm=rows["rule"] + mixing, late=100 * rows["run"].map(late), last=100 * rows["accuracy"],
        condition=condition.mask(rows["partition"] == "classes", TWO_CLASSES),
    ).set_index(["arm", "condition", "seed"]).sort_index()  # fmt: skip
    sets = {name: rows[rows["dataset"] == key] for key, name in DATA_SETS.items()}
    return {name: (own["last"], own["late"]) for name, own in sets.items() if len(own)}


def tables(results: Path) -> Iterator[str]:
    """Yield each rule's accuracy in the mean over seeds and at the worst, and what mixing costs.

    These are the points that a rule with mixing loses to itself without, where all are honest.
    Two-class clients are compared with themselves without mixing.
    """
    for last, late in read(results).values():
        body = {arm: [_mean_and_least(last[arm, c]) for c in CONDITIONS] for arm in ARMS}
        yield maker.cells("accuracy %: mean / worst seed", CONDITIONS, body)
        for score, what in ((last, ""), (late, f" over the last {LATE} rounds")):
            body = {arm: [_lost(score, arm, c) for c in CONDITIONS] for arm in ARMS[:2]}
            yield maker.cells(f"points lost{what}: mean / worst seed", CONDITIONS, body)


def _mean_and_least(found: pd.Series) -> str:
    missing = "" if len(found) == SEEDS else f" ({len(found)} of {SEEDS} seeds)"
    return f"{found.mean():.1f} / {found.min():.1f}{missing}"


def _lost(scores: pd.Series, arm: str, condition: str) -> str:
    beside = TWO_CLASSES if condition == TWO_CLASSES else HONEST
    lost = scores[arm.removesuffix(", mixing"), beside] - scores[arm, condition]
    return f"{lost.mean():.1f} / {lost.max():.1f}"


def picture(results: Path) -> maker.Figure:
    """Return the mean accuracies as a map: a row a rule, a column a condition."""
    known = read(results)
    figure, panels = maker.panels(9.0, 3.4 * len(known), len(known))
    for axes, (name, (last, _)) in zip(panels, known.items(), strict=True):
        means = [[last[arm, c].mean() for c in CONDITIONS] for arm in ARMS]
        image = axes.imshow(means, vmin=0, vmax=100, cmap="RdYlBu", aspect="auto")
        axes.set_xticks(range(len(CONDITIONS)), [c.replace(" ", "\n", 1) for c in CONDITIONS])
        axes.set_yticks(range(len(ARMS)), ARMS)
        axes.tick_params(length=0, labelsize=8)
        axes.spines[:].set_visible(False)
        for row, line in enumerate(means):
            for column, mean in enumerate(line):
                color = "black" if 20 < mean < 85 else "white"
                axes.text(column, row, f"{mean:.0f}", ha="center", va="center", color=color)
        axes.set_title(f"Accuracy % on {name}, three of ten clients hostile", fontsize=10)
        figure.colorbar(image, ax=axes)
    return figure


def adaptive_tables(results: Path) -> str:
    """Return accuracies under an attacker who knows clipping and mixing, and the points lost."""
    rows, body = maker.last(results), {}
    rows["side"] = BESIDE
    for name, fraction in SIDES.items():
        rows.loc[(rows["attack"] != "none") & (rows["trim_fraction"] == fraction), "side"] = name
    for name, side in ((name, rows[rows["side"] == name]) for name in (BESIDE, *SIDES)):
        worst = 100 * side["accuracy"].min()
        lost = ["", ""]
        if name != BESIDE:
            found = maker.of_pair(rows, (name, BESIDE), POINTS)
            lost = [POINTS.difference(found), maker.P[1](found)]
        body[name] = [str(len(side)), POINTS.show(side["accuracy"]), f"{worst:.1f}", *lost]
    head = ["seeds", "accuracy %", "worst seed", "less the first row, points [95 %]", "p, t-test"]
    return maker.cells("RKLB on the digits", head, body)


def number_tables(results: Path) -> str:
    """Return the accuracy of each defence at each part of hostile clients that it expects."""
    rows = maker.last(results)
    name = ("`rule=" + rows["rule"] + "`").mask(rows["mixing"], "`mixing=true`")
    columns = [
        maker.of(f"`trim_fraction={part:g}`", POINTS, trim_fraction=part)
        for part in sorted(rows["trim_fraction"].unique())
    ]
    return maker.table("accuracy %", maker.by(rows.assign(name=name), "name"), columns)
