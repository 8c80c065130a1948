"""The courses of runs over their rounds, in one picture."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbary.figures.run_pictures import Curve, whole_numbers
from fedbary.figures.sheet import COLORS, GREY, literal, open_frame, sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rounds = Sequence[Mapping[str, Any]]
"""A run's lines, one per round: ``round``, and scores by name."""

MARKERS = "os^DvPX*"

LETTER = 0.075
"""Inches of a letter in the legend."""


def courses(arms: Mapping[str, Sequence[Rounds]], curves: Sequence[Curve]) -> Figure:
    """Draw scores over the rounds: a panel a score; of several arms a colour and a marker each.

    An arm's line is the mean of its runs. Each of several runs is a thin line.

    Parameters
    ----------
    arms
        The runs of each arm, by its name. A score that is absent, None or not finite is skipped.
    curves
        Scores to draw; a single arm is drawn in their colours.
    """
    wide, several = 3.33 * len(curves), len(arms) > 1
    names = {arm: textwrap.fill(arm, int((wide - 0.8) / LETTER)) for arm in arms}
    lines = [name.split("\n") for name in names.values()]
    longest, depths = max(map(len, itertools.chain(*lines))), sorted(map(len, lines))
    columns = max(1, min(len(arms), int(wide / (0.8 + LETTER * longest))))
    rows = sum(depths[len(arms) // -columns :])  # of the deepest column of names at most
    figure = sheet(wide, 3.1 + (0.3 + 0.2 * rows if several else 0))
    panels = figure.subplots(1, len(curves), squeeze=False)[0]
    for axes, (key, scale, label, color) in zip(panels, curves, strict=True):
        for at, (arm, runs) in enumerate(arms.items()):
            known = [_known(rounds, key, scale) for rounds in runs]
            places = sorted({place for run in known for place in run})
            means = [np.mean([run[x] for run in known if x in run]) for x in places]
            look = {"color": COLORS[at % len(COLORS)] if several else color, "markersize": 4}
            dots = "o" if not several else MARKERS[at % len(MARKERS)]
            axes.plot(
                places, means, marker=dots if len(places) <= 30 else None,
                label=literal(names[arm]), zorder=3, **look,
            )  # fmt: skip
            for run in known if len(known) > 1 else ():
                axes.plot([*run], [*run.values()], color=look["color"], alpha=0.3, linewidth=0.7)
        axes.set(xlabel="Round", ylabel=label)
        whole_numbers(axes.xaxis)
        axes.grid(alpha=0.3)
        open_frame(axes)
        if not any(len(line.get_xdata()) for line in axes.lines):
            axes.set(xticks=[], yticks=[])
            axes.text(0.5, 0.5, "no values", transform=axes.transAxes, ha="center", color=GREY)
    if several:
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=8)
    return figure


def _known(rounds: Rounds, key: str, scale: float) -> dict[int, float]:
    found = ((line["round"], line.get(key)) for line in rounds)
    return {x: scale * y for x, y in found if y is not None and isfinite(y)}
