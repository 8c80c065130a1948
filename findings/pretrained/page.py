"""Heads on a pretrained network's features: what docs/results/pretrained.md shows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from fedbary.figures.sheet import BLUE, GREEN, GREY, ORANGE, RED, SKY, open_frame, sheet
from fedbary.report.cells import ACCURACY, ECE_15, NLL, Metric
from fedbary.report.differences import differences, p_value
from fedbary.report.markup import markdown_table
from fedbary.study.table import read_table, result_rows
from findings._pairs import SEED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMES = {
    "LDA": "LDA by sums",
    "Ridge": "Ridge by sums",
    "sites": "PVI, Kronecker sites",
    "full": "PVI, full sites",
    "diagonal": "PVI, diagonal sites",
    "FedAvg": "FedAvg",
    "SCAFFOLD": "SCAFFOLD",
    "FedLPA": "FedLPA",
    "one place": "all examples in one place",
}
"""Each kind of head, and what the page calls it."""

SIDES = ["LDA", "Ridge", "FedLPA", "sites 2"]
SIDES += [f"{rival} {rounds}" for rival in ("FedAvg", "SCAFFOLD") for rounds in (1, 5, 10, 20)]
SIDES += ["one place"]
"""The sides of the table in its order; a number is that of rounds."""

FRONT = ["LDA", "sites 2", "FedAvg 5", "FedAvg 20", "SCAFFOLD 20", "one place"]
"""The sides of the README's table."""

CHOSEN_BY = "held_out.tempered_nll"
"""The score by which settings are chosen."""

UNTEMPERED = Metric("untempered.nll", "NLL at T = 1")

SHOWN = (ACCURACY, NLL, ECE_15, UNTEMPERED)

PAIRS = [
    ("LDA", "FedAvg 5"),
    ("LDA", "FedAvg 20"),
    ("LDA", "SCAFFOLD 20"),
    ("LDA", "one place"),
    ("sites 2", "FedAvg 20"),
    ("sites 2", "SCAFFOLD 20"),
    ("sites 2", "one place"),
]
"""What is tested, by NLL."""

COLORS = {"LDA": BLUE, "Ridge": SKY, "sites": GREEN, "FedAvg": RED, "SCAFFOLD": ORANGE}


def read(results: Path) -> pd.DataFrame:
    """Return the result of every run, with its kind of head and its side.

    A client's mode in the first round of sites is that of a client alone.
    """
    rows = result_rows(read_table(results)).copy()  # one block in memory
    kind = rows["method"].replace({"barycentre": "FedAvg", "PVI": "sites"})
    kind = kind.mask((kind == "sites") & (rows["rounds"] == 1), "alone")
    kind = kind.where(rows["clients"] > 1, "one place")
    told = kind.isin(["sites", "FedAvg", "SCAFFOLD"])
    side = kind.where(~told, kind + " " + rows["rounds"].astype(str))
    return rows.assign(kind=kind, side=side, kilobytes=rows["bytes.up"] * rows["rounds"] / 1000)


def tables(results: Path) -> str:
    """Return the scores, the tests, and what was chosen, in Markdown."""
    rows = read(results)
    return "\n\n".join([scores(rows, SIDES), _tests(rows), *_chosen(results / "choice")])


def facts(results: Path) -> list[float]:
    """Return the accuracy of a client alone in per cent: of the mean client, and of the worst."""
    return of_alone(read(results))


def of_alone(rows: pd.DataFrame) -> list[float]:
    """Return the accuracies that `facts` does, of the side `alone`."""
    alone = rows[rows["side"] == "alone"]
    names = "weighted_accuracy", "worst10_accuracy"
    return [float(100 * alone[f"local_models.{name}"].mean()) for name in names]


def scores(rows: pd.DataFrame, sides: list[str]) -> str:
    """Return each side's rounds, bytes and scores."""
    body = []
    for side in sides:
        runs = rows[rows["side"] == side]
        if runs.empty:
            continue
        alone = side == "one place"
        sent = f"{runs['kilobytes'].mean():,.0f}"
        told = ["–", "–"] if alone else [f"{runs['rounds'].iloc[0]}", sent]
        shown = [metric.show(runs[metric.column]) for metric in SHOWN]
        body.append([NAMES[runs["kind"].iloc[0]], *told, *shown])
    head = ["head", "rounds", "KB up a client", *(metric.label for metric in SHOWN)]
    return markdown_table(head, body)


def _tests(rows: pd.DataFrame) -> str:
    body = [
        [f"{row.first} − {row.second}", NLL.difference(row), p_value(row.t_test), p_value(row.holm)]
        for row in differences(rows, PAIRS, [NLL], SEED).itertuples()
    ]
    return markdown_table(["pair", "NLL [95 %]", "p, t-test", "p, Holm"], body)


def _chosen(results: Path) -> list[str]:
    """Return the NLL of every setting that was tried: of heads by steps, FedLPA, and one place.

    It is the NLL at the clients' temperature on what they hold out.
    """
    parts = [result_rows(read_table(folder)) for folder in (results, results / "decay")]
    table = pd.concat(parts, ignore_index=True)
    table["side"] = table["method"].replace({"barycentre": "FedAvg", "PVI": "one place"})
    keys = ["side", "rounds", "batch_size", "lr_schedule", "weight_decay"]
    steps = _tried(table[table["side"].isin(["FedAvg", "SCAFFOLD"])], keys, "lr")
    lpa = _tried(table[table["side"] == "FedLPA"], ["side", "local_epochs", "weight_decay"], "lr")
    central = _tried(table[table["side"] == "one place"], ["side"], "prior_std")
    return [steps, lpa, central]


def _tried(table: pd.DataFrame, keys: list[str], varied: str) -> str:
    """Return the NLL of a setting's values, a row for each of the other settings."""
    body = []
    for values, rows in table.groupby(keys):
        mean = rows.groupby(varied)[CHOSEN_BY].mean()
        told = ", ".join(f"{value:g}: {nll:.4f}" for value, nll in mean.items())
        cells = [f"{value:g}" if isinstance(value, float) else str(value) for value in values]
        body.append([*cells, told])
    head = [keys[0], *(f"`{key}`" for key in keys[1:]), f"`{varied}`: NLL"]
    return markdown_table(head, body)


def picture(results: Path) -> Figure:
    """Return accuracy and NLL against rounds and against bytes, the central model as a line."""
    rows = read(results)
    figure = sheet(9.0, 6.4)
    axes = figure.subplots(2, 2, sharex="col", sharey="row")
    for (left, right), metric in zip(axes, (ACCURACY, NLL), strict=True):
        _draw(left, rows, metric, "rounds", {1: "1", 2: "2", 5: "5", 10: "10", 20: "20"})
        _draw(
            right, rows, metric, "kilobytes", {50: "50", 200: "200", 1000: "1,000", 3000: "3,000"}
        )
        left.set_ylabel(metric.label)
    axes[1, 0].set_xlabel("rounds")
    axes[1, 1].set_xlabel("KB that a client sends in all")
    axes[1, 0].legend(frameon=False)
    return figure


def _draw(
    axes: Axes, rows: pd.DataFrame, metric: Metric, column: str, ticks: Mapping[int, str]
) -> None:
    for kind, color in COLORS.items():
        of_it = rows[rows["kind"] == kind]
        scores = metric.scale * of_it.set_index("rounds")[metric.column]
        mean, spread = (scores.groupby(level=0).agg(by) for by in ("mean", "std"))
        x = of_it.groupby("rounds")["kilobytes"].mean() if column == "kilobytes" else mean.index
        axes.errorbar(x, mean, spread, fmt="o-", color=color, capsize=2, label=NAMES[kind])
    central = metric.scale * rows.loc[rows["kind"] == "one place", metric.column].mean()
    axes.axhline(central, color=GREY, linewidth=1, linestyle="--", label=NAMES["one place"])
    axes.set_xscale("log")
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.minorticks_off()
    open_frame(axes)
