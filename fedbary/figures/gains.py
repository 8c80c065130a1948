"""Picture of the clients that gain by a model of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from fedbary.figures.sheet import BLUE, GREEN, open_frame, sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOOKS = {"held_out": (BLUE, "on what it holds out"), "shares": (GREEN, "by its label shares")}
"""The colour and the legend of each kind of data."""

MOST_NAMED = 40


def who_gains(gains: Mapping[str, Mapping[str, float]]) -> Figure:
    """Draw each client's own model's accuracy less that of the global model.

    Parameters
    ----------
    gains : mapping of str to mapping of str to float
        Each site's gain as a fraction, by kind of data, ``held_out`` or ``shares``. Sites are drawn
        in the order of the last kind's gains; up to 40 bear their names.
    """
    *_, order = gains.values()
    sites = sorted(order, key=lambda site: order[site])
    named = len(sites) <= MOST_NAMED
    figure = sheet(6.0, max(2.6, 1.2 + (0.3 * len(sites) if named else 4.0)))
    axes = figure.subplots()
    height = 0.8 / len(gains)
    for at, (data, found) in enumerate(gains.items()):
        color, label = LOOKS[data]
        known = [(y, 100 * found[site]) for y, site in enumerate(sites) if site in found]
        places, values = np.array(known).T
        offset = (at - (len(gains) - 1) / 2) * height
        axes.barh(places + offset, values, height, color=color, label=label)
    axes.axvline(0, color="black", linewidth=1)
    axes.set(xlabel="Own model's accuracy less the global one's (points)")
    axes.set_yticks(range(len(sites)) if named else [])
    if named:
        axes.set_yticklabels([site[:24] for site in sites], parse_math=False)
    else:
        axes.set_ylabel(f"{len(sites)} sites")
    axes.legend(fontsize=8, loc="lower right")
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    open_frame(axes)
    return figure
