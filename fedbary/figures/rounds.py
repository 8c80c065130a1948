"""Scores of regressions by round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fedbary.figures.looks import COLORS, MARKERS
from fedbary.figures.sheet import open_frame

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def rounds_by_rule(table: pd.DataFrame, names: Mapping[str, str]) -> Figure:
    """Draw NLL and RMSE by round: a column of panels a data set, a line a method."""
    from matplotlib.figure import Figure

    shown = table[(table["model"] == "mlp") & (table["round"] > 0)]
    datasets = list(shown["dataset"].unique())
    rules = list(shown["rule"].unique())
    figure = Figure(figsize=(2.8 * max(1, len(datasets)), 5), layout="constrained")
    panels = figure.subplots(2, max(1, len(datasets)), squeeze=False, sharex="col")
    for column, dataset in enumerate(datasets):
        for row, (metric, label) in enumerate((("nll", "NLL, nats"), ("rmse", "RMSE"))):
            axes = panels[row, column]
            for rule, color, marker in zip(rules, COLORS, MARKERS, strict=False):
                held = shown[(shown["dataset"] == dataset) & (shown["rule"] == rule)]
                by_round = held.groupby("round")[metric]
                mean, error = by_round.mean(), by_round.sem(ddof=1).fillna(0)
                axes.errorbar(
                    mean.index, mean, error, color=color, marker=marker, markersize=4, label=rule
                )
            axes.grid(alpha=0.3)
            open_frame(axes)
            if row == 0:
                axes.set_title(names.get(dataset, dataset), size=11, parse_math=False)
            else:
                axes.set_xlabel("Round")
            if column == 0:
                axes.set_ylabel(label)
    panels[0, 0].legend(fontsize=8)
    return figure
