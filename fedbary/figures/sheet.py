"""Common parts of all pictures: the sheet, its colours, its frames."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, RED, GREEN, ORANGE, SKY, GREY = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#E69F00",
    "#56B4E9",
    "#7F7F7F",
)
COLORS = (
    "#000000",
    BLUE,
    RED,
    GREEN,
    ORANGE,
    "#CC79A7",
    SKY,
    "#882255",
    "#332288",
    "#7A4B22",
    "#999933",
    "#A6D854",
)
"""Colours that everyone tells apart."""

DPI = 160


def sheet(width: float, height: float) -> Figure:
    """Return an empty figure of a size in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=DPI, layout="constrained")


def literal(text: object) -> str:
    r"""Return a label that shows a text literally: a dollar sign begins no formula."""
    return str(text).replace("$", r"\$")


def open_frame(axes: Axes) -> None:
    """Leave out the upper and the right line of a frame."""
    axes.spines[["top", "right"]].set_visible(False)
