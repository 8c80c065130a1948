"""What hostile clients do under each rule, with mixing and without.

It makes the tables of docs/results/hostile.md from the results of
`findings/hostile/grid.yaml`, and of what was tried on validation data, in the folders within,
and draws `picture.png` beside them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
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

ROBUST = "robust"
"""The folder within, of the first runs, under three attacks."""

BOUNDED = "RKLB, precisions ≤ 1.5 × the median"
ROBUST_NAMES = {
    "FedAvg": "FedAvg",
    "RKLB": "RKLB",
    BOUNDED: BOUNDED,
    "WB": "WB",
    "Median": "Median",
    "TrimmedMean": "TrimmedMean, 3 of 10 at either end",
    "MultiKrum": "**MultiKrum**, 3 of 10 left out",
}
"""What the first table calls the rules of these runs."""

ROBUST_ATTACKS = {
    "none": HONEST,
    "sign_flip": "sign flip",
    "scaling": "scaling × 10",
    "variance_collapse": "variance collapse",
}

SCHEDULES = ("choice", "choice-rounds")
"""The folders within, of runs on validation data that tried other schedules."""

LENGTHS = {"choice-lengths-before": "one for both", "choice-lengths": "two"}
"""Those that tried whether means and deviations have a median length together, or each its own."""


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


def read_robust(results: Path) -> pd.DataFrame:
    """Return the results of the first runs, with `side`: the rule, and whether it is bounded."""
    rows = result_rows(read_table(results / ROBUST))
    bounded = rows["max_precision_ratio"].astype(str) != "none"
    return rows.assign(side=rows["rule"].mask(bounded, BOUNDED))


def robust_table(results: Path) -> str:
    """Return accuracy % / NLL of each rule under the first three attacks, three of ten hostile."""
    rows = read_robust(results)
    rows = rows[(rows["hostile_fraction"] == 0.3) & (rows["partition"] != "classes")]
    accuracy, body = replace(ACCURACY, decimals=1), []
    for side, name in ROBUST_NAMES.items():
        cells = []
        for attack in ROBUST_ATTACKS:
            runs = rows[(rows["side"] == side) & (rows["attack"] == attack)]
            if runs.empty:
                cells.append("no variances")
                continue
            cells.append(f"{accuracy.show(runs['accuracy'])} / {runs['nll'].mean():#.3g}")
        body.append([name, *cells])
    return markdown_table(["rule", *ROBUST_ATTACKS.values()], body)


def facts(results: Path) -> Iterator[float]:
    """Yield the accuracies of the first runs: means, deviations, and those of honest RKLB."""
    rows = read_robust(results)
    arms = rows.groupby(["side", "attack", "hostile_fraction", "partition"], dropna=False)
    yield from 100 * arms["accuracy"].mean()
    yield from 100 * arms["accuracy"].std()
    honest = arms["accuracy"].mean().loc["RKLB", "none", 0.3, "dirichlet"]
    bounded = arms["accuracy"].mean().loc[BOUNDED, "variance_collapse", 0.1, "dirichlet"]
    yield 100 * (honest - bounded)
    for runs in (rows[rows["side"] == "RKLB"], read(results).query("arm == 'RKLB'")):
        yield from 100 * runs.loc[runs["attack"] == "none", "accuracy"]


def schedules_table(results: Path) -> str:
    """Return what is lost on validation data under each schedule."""
    rows = pd.concat(result_rows(read_table(results / name)) for name in SCHEDULES)
    schedule = rows["rounds"].astype(int).astype(str) + " rounds, " + rows["lr_schedule"]
    return choice_table(rows.assign(choice=schedule), "schedule")


def lengths_table(results: Path) -> str:
    """Return what is lost on validation data where lengths are clipped together, and apart."""
    rows = (
        result_rows(read_table(results / name)).assign(choice=label)
        for name, label in LENGTHS.items()
    )
    return choice_table(pd.concat(rows), "lengths clipped")


def choice_table(rows: pd.DataFrame, what: str) -> str:
    """Return what each choice loses to itself where all are honest and nothing is mixed."""
    rows = named(rows)
    tried = [name for name in conditions() if (rows["condition"] == name).any()]
    body = []
    for (rule, choice), runs in rows.groupby(["rule", "choice"]):
        plain = accuracies(runs, rule, HONEST)
        cells = []
        for condition in tried:
            lost = plain - accuracies(runs, f"{rule}, mixing", condition)
            cells.append(f"{lost.mean():.1f} / {lost.max():.1f}")
        body.append([rule, choice, f"{plain.mean():.1f}", *cells])
    head = ["points lost: mean / worst seed", what, "accuracy %, honest, not mixed"]
    return markdown_table([*head, *(f"mixing, {name}" for name in tried)], body)


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
    parts, late = [robust_table(results)], _known(read_late(results))
    over = f"points lost over the last {LATE} rounds"
    for name, rows in _known(read(results)).items():
        parts += [f"### {name}", accuracy_table(rows), lost_table(rows)]
        parts.append(lost_table(late[name], over))
    parts += ["### Schedules", schedules_table(results)]
    parts += ["### Lengths", lengths_table(results)]
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
