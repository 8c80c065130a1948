"""What the scripts of result pages share: their picture's file, and pictures of differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mode
from typing import TYPE_CHECKING, Any

from fedbary.figures.sheet import BLUE, DPI, GREY, RED, open_frame
from fedbary.report.cells import Metric
from fedbary.report.document import write_small

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PICTURE = "picture.png"
"""The picture's name in the folder of the results."""


def draw(picture: Callable[[Path], Figure], results: Path) -> None:
    """Draw the picture of a results folder into it."""
    write_small(picture(results), results / PICTURE, DPI)


def draw_differences(axes: Axes, metric: Metric, found: Mapping[str, Any]) -> None:
    """Draw mean differences with their 95 % intervals, a row each, from the top.

    Blue is an advantage of the first side, red one of the second, grey an interval with 0 in it.
    They are `Paired`, or rows of
    `differences`. A number of pairs that is not that of most rows stands beside.
    """
    usual = mode(pair.pairs for pair in found.values())
    for row, pair in enumerate(found.values()):
        color = GREY
        if pair.low > 0 or pair.high < 0:
            color = BLUE if (pair.mean < 0) == metric.lower_is_better else RED
        axes.plot([pair.low, pair.high], [row, row], color=color, linewidth=1.6)
        axes.plot(pair.mean, row, "o", color=color, markersize=5)
        if pair.pairs != usual:
            axes.annotate(f"{pair.pairs} pairs", (pair.mean, row - 0.12), ha="center", fontsize=7)
    axes.axvline(0, color="black", linewidth=1)
    _name_rows(axes, list(found))
    axes.set_xlabel(metric.label)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    open_frame(axes)


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
