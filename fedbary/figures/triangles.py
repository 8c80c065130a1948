"""The Bayesian signed-rank test in the triangle of its three outcomes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from fedbary.figures.sheet import RED, sheet
from fedbary.scores.stats import SignedRank

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def triangles(results: Mapping[tuple[str, str], SignedRank]) -> Figure:
    """Draw a triangle for each pair of methods, (first, second), up to five in a row.

    A draw with more mass on an outcome lies closer to its corner. Lines part the regions in which
    each is the largest. The probabilities stand at the corners.

    Raises
    ------
    ValueError
        There is no pair.
    """
    if not results:
        raise ValueError("there is no pair to draw")
    columns = min(5, len(results))
    rows = math.ceil(len(results) / columns)
    figure = sheet(2.6 * columns, 2.6 * rows)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, ((first, second), result) in zip(panels, results.items(), strict=False):
        _draw_triangle(axes, result, first, second)
    for axes in panels[len(results) :]:
        axes.remove()
    return figure


def _draw_triangle(axes: Axes, result: SignedRank, first: str, second: str) -> None:
    from matplotlib.patches import Polygon

    corners = np.array([[0, 0], [0.5, math.sqrt(0.75)], [1, 0]])
    points = result.sample @ corners
    outline = Polygon(corners, fill=False, linewidth=1, zorder=3)
    axes.add_patch(outline)
    cells = axes.hexbin(
        *points.T, gridsize=40, extent=(-0.05, 1.05, -0.05, 1), mincnt=1, bins="log", cmap="YlGnBu"
    )
    cells.set_clip_path(outline)
    centre = corners.mean(0)
    for corner in corners:
        border = np.stack([centre, (corners.sum(0) - corner) / 2])
        axes.plot(*border.T, color=RED, linewidth=1)
    labels = (
        (f"{first}\nbetter: {result.first:.3f}", -0.04, "top"),
        (f"equal: {result.equal:.3f}", 0.03, "bottom"),
        (f"{second}\nbetter: {result.second:.3f}", -0.04, "top"),
    )
    for (x, y), (label, rise, side) in zip(corners, labels, strict=True):
        axes.text(x, y + rise, label, size=8, ha="center", va=side, parse_math=False)
    axes.set(xlim=(-0.25, 1.25), ylim=(-0.25, 1.1), aspect="equal")
    axes.axis("off")
