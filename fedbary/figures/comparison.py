"""Metrics of several methods side by side, a line a method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedbary.figures.looks import REFERENCE, styles
from fedbary.figures.sheet import literal, open_frame, sheet

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DODGE, DODGED = 0.07, 0.7
"""Distance, in layers, of the rules' markers at one number of layers, and their largest spread."""


def lines_by_group(frame: pd.DataFrame, metrics: Sequence[tuple[str, str, float]]) -> Figure:
    """Draw metrics against the number of Bayesian layers, a panel per metric and data set.

    A marker is the mean over the seeds, its bar ± one sample standard deviation (none for one
    seed). Rules stand side by side about each number of layers, so that equal values can be told
    apart. FedAvg at n = 0 is drawn on as a dashed line, its standard deviation as a band.

    Parameters
    ----------
    frame : DataFrame
        A row per run: ``dataset``, ``rule``, ``n`` (Bayesian layers), ``seed`` and the metrics.
        Values that are not finite are left out.
    metrics : sequence of (str, str, float)
        Per row of panels: column, label with its unit, and the factor from one to the other.

    Raises
    ------
    ValueError
        There is no run.
    """
    figure, panels, rules = _panels(frame, [label for _, label, _ in metrics], "Bayesian layers n")
    look = styles(frame["rule"])
    others = [rule for rule in rules if rule != REFERENCE]
    step = min(DODGE, DODGED / max(1, len(others)))
    for row, (column, _, scale) in zip(panels, metrics, strict=True):
        for axes, (_, runs) in zip(row, frame.groupby("dataset", sort=False), strict=True):
            for rule in rules:
                n, mean, std = _mean_and_std(runs[runs["rule"] == rule], "n", column, scale)
                if rule == REFERENCE:
                    _draw_reference(axes, mean[n == 0], std[n == 0])
                else:
                    n = n + step * (others.index(rule) - (len(others) - 1) / 2)
                axes.errorbar(
                    n, mean, std, **look[rule], label=rule, markersize=6, linewidth=1, capsize=2
                )
            axes.set_xticks(sorted(set(frame["n"])))
    _add_legend(figure, rules)
    return figure


def rejection_curves(frame: pd.DataFrame) -> Figure:
    """Draw accuracy against the rejected share of the inputs, a panel per data set.

    If FedAvg is among the rules, a panel below shows the difference from FedAvg's accuracy at the
    same seed and share. A line is the mean over the seeds, its band ± one sample standard
    deviation. Markers shrink from rule to rule, so that equal lines can be told apart.

    Parameters
    ----------
    frame : DataFrame
        A row per run and share: ``dataset``, ``rule``, ``seed``, ``rejected`` and ``accuracy``,
        both fractions. Values that are not finite are left out.

    Raises
    ------
    ValueError
        There is no run, or FedAvg has two at one data set, seed and share.
    """
    shown = {"accuracy": "Accuracy on the rest (%)"}
    if REFERENCE in set(frame["rule"]):
        shown["gain"] = f"Difference from {REFERENCE} (points)"
        frame = frame.assign(gain=frame["accuracy"] - _reference_of(frame))
    figure, panels, rules = _panels(
        frame, list(shown.values()), "Rejected, most uncertain first (%)"
    )
    look = styles(frame["rule"])
    sizes = dict(zip(rules, np.linspace(8, 3.5, len(rules)), strict=True))
    for row, column in zip(panels, shown, strict=True):
        for axes, (_, runs) in zip(row, frame.groupby("dataset", sort=False), strict=True):
            for rule, size in sizes.items():
                share, mean, std = _mean_and_std(
                    runs[runs["rule"] == rule], "rejected", column, 100
                )
                color = look[rule]["color"]
                axes.fill_between(100 * share, mean - std, mean + std, color=color, alpha=0.12)
                axes.plot(100 * share, mean, **look[rule], label=rule, markersize=size, linewidth=1)
    _add_legend(figure, rules)
    return figure


def _mean_and_std(
    runs: pd.DataFrame, by: str, column: str, scale: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the groups, and mean and standard deviation in each (0 where it has one value)."""
    finite = runs[np.isfinite(runs[column].astype(float))]
    groups = finite.groupby(by)[column]
    mean, std = groups.mean(), groups.std().fillna(0)
    return mean.index.to_numpy(), scale * mean.to_numpy(), scale * std.to_numpy()


def _draw_reference(axes: Axes, mean: np.ndarray, std: np.ndarray) -> None:
    color = styles()[REFERENCE]["color"]
    for level, spread in zip(mean, std, strict=True):
        axes.axhline(level, color=color, linestyle="--", linewidth=1)
        axes.axhspan(level - spread, level + spread, color=color, alpha=0.08, linewidth=0)


def _reference_of(frame: pd.DataFrame) -> np.ndarray:
    """Return the accuracy of FedAvg at the data set, seed and share of each row."""
    run = ["dataset", "seed", "rejected"]
    reference = frame[frame["rule"] == REFERENCE].set_index(run)["accuracy"]
    return reference.reindex(frame.set_index(run).index).to_numpy()


def _panels(
    frame: pd.DataFrame, labels: Sequence[str], xlabel: str
) -> tuple[Figure, np.ndarray, list[str]]:
    """Return a sheet, its panels (labels, data sets), and the rules in the order of `styles`."""
    datasets = list(dict.fromkeys(frame["dataset"]))
    if not datasets:
        raise ValueError("there is no run to draw")
    figure = sheet(max(4.5, 1 + 3.1 * len(datasets)), 0.9 + 2.5 * len(labels))
    panels = figure.subplots(len(labels), len(datasets), sharex=True, squeeze=False)
    for axes in panels.flat:
        axes.grid(alpha=0.3)
        open_frame(axes)
    for axes, label in zip(panels[:, 0], labels, strict=True):
        axes.set_ylabel(label)
    for axes, dataset in zip(panels[0], datasets, strict=True):
        axes.set_title(dataset, size=11, parse_math=False)
    for axes in panels[-1]:
        axes.set_xlabel(xlabel)
    present = set(frame["rule"])
    return figure, panels, [rule for rule in styles(frame["rule"]) if rule in present]


def _add_legend(figure: Figure, rules: Sequence[str]) -> None:
    """Put one legend above all panels, as wide as the sheet allows."""
    handles, _ = figure.axes[0].get_legend_handles_labels()
    columns = min(len(rules), int(figure.get_figwidth() / 1.3))
    labels = [literal(rule) for rule in rules]
    figure.legend(handles, labels, loc="outside upper center", ncols=columns, fontsize=9)
