"""What hostile clients do under each rule, with mixing and without.

It makes the tables of docs/results/hostile.md from the results of `findings/hostile/grid.yaml`, and
draws `picture.png` beside them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from fedbary.figures.sheet import sheet
from fedbary.report.cells import ACCURACY
from fedbary.report.markup import markdown_table
from fedbary.study.table import read_table, result_rows
from findings._pairs import by_seed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HONEST = "nobody attacks"
TWO_CLASSES = "two classes a client"
ATTACKS = (
    "sign_flip",
    "scaling",
    "variance_collapse",
    "variance_explosion",
    "inner_product",
    "little_is_enough",
)
ARMS = ("RKLB, mixing", "WB, mixing", "MultiKrum", "Median", "TrimmedMean", "RKLB", "WB")
DATA_SETS = {"digits": "digits", "fashionmnist": "Fashion-MNIST"}
SEEDS = 3

LATE = 3
"""The last rounds whose mean accuracy is less of an accident than that of the very last."""


def read(results: Path) -> pd.DataFrame:
    """Return every run's result with its `arm` and its `condition`."""
    return named(result_rows(read_table(results)))


def read_late(results: Path) -> pd.DataFrame:
    """Return what `read` does, with each run's mean accuracy over its last `LATE` rounds."""
    every, rows = read_table(results), read(results)
    late = every[every["round"] > every["rounds"] - LATE]
    return rows.assign(accuracy=rows["run"].map(late.groupby("run")["accuracy"].mean()))


def named(rows: pd.DataFrame) -> pd.DataFrame:
    """Return results with their `arm` and their `condition`."""
    condition = rows["attack"].str.replace("_", " ").replace("none", HONEST)
    return rows.assign(
        arm=rows["rule"] + rows["mixing"].map({True: ", mixing", False: ""}),
        condition=condition.mask(rows["partition"] == "classes", TWO_CLASSES),
    )


def conditions() -> list[str]:
    """Return what a rule is tried under, in the tables' order."""
    return [HONEST, *(attack.replace("_", " ") for attack in ATTACKS), TWO_CLASSES]


def accuracies(rows: pd.DataFrame, arm: str, condition: str) -> pd.Series:
    """Return the accuracies in per cent, by seed."""
    return by_seed(rows[(rows["arm"] == arm) & (rows["condition"] == condition)], ACCURACY)


def accuracy_table(rows: pd.DataFrame) -> str:
    """Return each rule's accuracy in the mean over seeds, and at the worst of them."""
    body = []
    for arm in ARMS:
        found = [accuracies(rows, arm, condition) for condition in conditions()]
        body.append([arm, *(_mean_and_least(each) for each in found)])
    return markdown_table(["accuracy %: mean / worst seed", *conditions()], body)


def lost_table(rows: pd.DataFrame, what: str = "points lost") -> str:
    """Return the points that each rule with mixing loses to itself without, where all are honest.

    Two-class clients are compared with themselves without mixing.
    """
    body = []
    for arm in ARMS:
        plain = arm.removesuffix(", mixing")
        if plain == arm:
            continue
        cells = []
        for condition in conditions():
            beside = TWO_CLASSES if condition == TWO_CLASSES else HONEST
            lost = accuracies(rows, plain, beside) - accuracies(rows, arm, condition)
            cells.append(f"{lost.mean():.1f} / {lost.max():.1f}")
        body.append([arm, *cells])
    return markdown_table([f"{what}: mean / worst seed", *conditions()], body)


def _mean_and_least(found: pd.Series) -> str:
    missing = "" if len(found) == SEEDS else f" ({len(found)} of {SEEDS} seeds)"
    return f"{found.mean():.1f} / {found.min():.1f}{missing}"


def _known(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the rows of each data set that was run, by its name."""
    return {
        name: rows[rows["dataset"] == key]
        for key, name in DATA_SETS.items()
        if (rows["dataset"] == key).any()
    }


def tables(results: Path) -> str:
    """Return all tables in Markdown."""
    parts: list[str] = []
    late = _known(read_late(results))
    over = f"points lost over the last {LATE} rounds"
    for name, rows in _known(read(results)).items():
        parts += [f"### {name}", accuracy_table(rows), lost_table(rows)]
        parts.append(lost_table(late[name], over))
    return "\n\n".join(parts)


def picture(results: Path) -> Figure:
    """Return the mean accuracies as a map: a row a rule, a column a condition."""
    known = _known(read(results))
    figure = sheet(9.0, 3.4 * len(known))
    panels = figure.subplots(len(known), 1, squeeze=False)[:, 0]
    for axes, (name, rows) in zip(panels, known.items(), strict=True):
        means = [[accuracies(rows, arm, c).mean() for c in conditions()] for arm in ARMS]
        image = axes.imshow(means, vmin=0, vmax=100, cmap="RdYlBu", aspect="auto")
        axes.set_xticks(range(len(conditions())), [c.replace(" ", "\n", 1) for c in conditions()])
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
