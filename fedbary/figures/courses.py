"""The courses of several runs in one picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedbary.figures.run_pictures import Curve, whole_numbers
from fedbary.figures.sheet import COLORS, literal, open_frame, sheet

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def courses(table: pd.DataFrame, curves: Sequence[Curve]) -> Figure:
    """Draw scores over the rounds: a panel a score, a line a run, a colour an arm.

    Parameters
    ----------
    table : DataFrame
        A row a run and round, with `run`, `arm`, `round` and the scores.
    curves : sequence of Curve
        Scores to draw.
    """
    arms = list(table["arm"].unique())
    width = 3.6 * len(curves)
    columns = max(1, min(len(arms), int(width / (0.8 + 0.075 * max(map(len, arms))))))
    figure = sheet(width, 3.4 + 0.2 * -(-len(arms) // columns))
    panels = figure.subplots(1, len(curves), squeeze=False)[0]
    for axes, (key, scale, label, _) in zip(panels, curves, strict=True):
        for index, (arm, rows) in enumerate(table.groupby("arm", sort=False)):
            for number, (_, run) in enumerate(rows.groupby("run", sort=False)):
                axes.plot(
                    run["round"], scale * run[key], color=COLORS[index % len(COLORS)],
                    label=literal(arm) if not number else None, alpha=0.8,
                )  # fmt: skip
        axes.set(xlabel="Round", ylabel=label)
        whole_numbers(axes.xaxis)
        axes.grid(alpha=0.3)
        open_frame(axes)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=8)
    return figure
