"""Means by curvature: the tables and the picture of docs/results/curvature.md."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from fedbary.report.results import Metric
from findings import maker

PAIRS = (
    ("curvature", "FedAvg"), ("curvature", "FedAvg + a pass"), ("curvature", "SCAFFOLD"),
    ("curvature", "by size"), ("by size", "FedAvg"),
)  # fmt: skip
SCORES = (
    maker.AT_T, Metric("accuracy", "Accuracy %", 100, 2), Metric("temperature", "T", 1, 2),
)  # fmt: skip
SETTING = ["lr", "momentum", "lr_schedule", "local_epochs"]
SETTING_OF = {"by size": "curvature"}
BOUND = 0.01
"""The bound of equivalence, in nats."""
COLOURS = {"Dirichlet 0.1": maker.BLUE, "Dirichlet 0.5": maker.ORANGE, "even": maker.GREY}
"""Each condition's, in the order of the page."""


def best(
    cells: pd.DataFrame, condition: str, side: str, local_epochs: int | None = None
) -> dict[str, Any]:
    """Return the setting of a side with the least mean NLL on held-out examples.

    With `local_epochs` the best of those that have so many.
    """
    tried = maker.where(cells, condition=condition, side=side, stage="choice")
    means = tried.groupby(SETTING)["held_out"].mean()
    if local_epochs is not None:
        means = means.xs(local_epochs, level="local_epochs", drop_level=False)
    return dict(zip(SETTING, means.idxmin(), strict=True))


def compared(cells: pd.DataFrame, local_epochs: int | None = None) -> pd.DataFrame:
    """Return the cells of fresh seeds that have their side's best setting."""
    sides = PAIRS[0] if local_epochs else cells["side"].unique()
    fresh = maker.by(maker.where(cells, stage="fresh"), "condition", "side")
    return pd.concat(
        maker.where(own, **best(cells, condition, SETTING_OF.get(side, side), local_epochs))
        for (condition, side), own in fresh.items()
        if side in sides
    )


def tables(results: Path) -> Iterator[str]:
    """Yield held-out scores by local epochs, test scores and differences, by condition."""
    cells = pd.read_csv(results / "cells.csv")
    tried, fresh = maker.where(cells, stage="choice"), compared(cells)
    means = tried.groupby(["condition", "side", *SETTING])["held_out"].mean()
    least = means.groupby(["condition", "side", "local_epochs"]).min()
    epochs = sorted(tried["local_epochs"].unique())
    rows = {
        (condition, side): [
            f"{least[place]:.3f}" if (place := (condition, side, count)) in least else "–"
            for count in epochs
        ]
        for condition in COLOURS
        for side in maker.by(maker.where(tried, condition=condition), "side")
    }
    head = ["best held-out NLL", "side"]
    yield maker.cells(head, [f"{count:g} local epochs" for count in epochs], rows)
    scored = {}
    for condition in COLOURS:
        for side, own in maker.by(maker.where(fresh, condition=condition), "side").items():
            one = own.iloc[0]
            steps = f"lr={one['lr']:g} momentum={one['momentum']:g} {one['lr_schedule']}"
            scored[condition, side, f"{steps}, {one['local_epochs']:g} epochs"] = own
    yield maker.table(["fresh seeds", "side", "setting"], scored, SCORES)
    yield maker.tests_table("pair", maker.AT_T, differences(fresh, PAIRS), BOUND)
    by_epochs = {
        f"{name}, {count:g} epochs": row
        for count in tried[tried["side"] == "curvature"]["local_epochs"].unique()
        for name, row in differences(compared(cells, count), PAIRS[:1]).items()
    }
    yield maker.tests_table("at equal local epochs", maker.AT_T, by_epochs, BOUND)


def differences(rows: pd.DataFrame, several: Any) -> dict[str, Any]:
    """Return the differences of pairs of sides at T, by condition."""
    return {
        f"{condition}: {name}": row
        for condition in COLOURS
        for name, row in maker.pairs(
            maker.where(rows, condition=condition), several, maker.AT_T
        ).items()
    }


def picture(results: Path) -> maker.Figure:
    """Return curvature's lead over FedAvg against local epochs, by skew, with 95 % intervals."""
    cells = pd.read_csv(results / "cells.csv")
    figure, (axes,) = maker.panels(5.5, 3.2)
    for condition, color in COLOURS.items():
        own = maker.where(cells, condition=condition)
        counts = sorted(maker.where(own, side="curvature")["local_epochs"].unique())
        found = [differences(compared(own, count), PAIRS[:1]).popitem()[1] for count in counts]
        mean = [row.mean for row in found]
        reach = [row.high - row.mean for row in found]
        axes.errorbar(counts, mean, reach, fmt="o-", capsize=2, color=color, label=condition)
    axes.axhline(0, color="black", linewidth=1)
    axes.set_xlabel("local epochs a round")
    axes.set_ylabel("NLL at T, curvature − FedAvg")
    maker.log_ticks(axes, counts)
    axes.legend(frameon=False)
    return figure
