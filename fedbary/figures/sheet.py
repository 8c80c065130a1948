"""Common parts of all pictures: the sheet, its colours, its frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

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


COLUMNS = 8


def contact_sheet(
    images: np.ndarray, said: Sequence[str], uncertainty: np.ndarray, columns: int = COLUMNS
) -> Figure:
    """Draw the surest images in the upper row and the least sure in the lower.

    Parameters
    ----------
    images : ndarray
        (N, C, H, W) with one or three channels, uint8 or floats.
    said : sequence of str
        Caption of each.
    uncertainty : ndarray
        Order of the images, (N,).
    columns : int
        Number of images in each row.
    """
    order = np.argsort(uncertainty, kind="stable")
    rows = [order[:columns], order[::-1][:columns]]
    figure = sheet(1.35 * columns, 3.6)
    panels = figure.subplots(2, columns, squeeze=False)
    for row, places, title in zip(panels, rows, ("surest", "least sure"), strict=True):
        for axes in row:
            axes.set(xticks=[], yticks=[])
            axes.axis("off")
        for axes, place in zip(row, places, strict=False):
            pixels = images[place].astype(float)
            low, high = pixels.min(), pixels.max()
            shown = ((pixels - low) / max(high - low, 1e-12)).transpose(1, 2, 0)
            shown = shown if shown.shape[2] == 3 else shown[..., 0]
            axes.imshow(shown, cmap="gray", vmin=0, vmax=1)
            axes.set_title(said[place], fontsize=8, parse_math=False)
        row[0].text(
            -0.25, 0.5, title, rotation=90, va="center", ha="center", transform=row[0].transAxes
        )
    return figure
