"""The picture of how large conformal sets are, and how often those of a size hold the truth."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedbary.figures.sheet import BLUE, RED, open_frame, sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

PARTS = 5
"""Parts, of about as many examples each, that widths are drawn in."""


def set_size_picture(hits: Tensor, sizes: Tensor, level: float) -> Figure:
    """Draw the part of sets of each size, and how often these hold the truth.

    Parameters
    ----------
    hits
        Whether each set or interval holds the truth, (N,) bool.
    sizes
        Classes of each set, (N,) int64; or widths of intervals, floating point, drawn by fifths.
    level
        The rate at which all together shall hold it; a line.
    """
    held, known = hits.double().cpu().numpy(), sizes.cpu().numpy()
    wide = sizes.is_floating_point()
    inner = np.quantile(known, np.linspace(0, 1, PARTS + 1)[1:-1]) if wide else ()
    found, part = np.unique(np.searchsorted(inner, known) if wide else known, return_inverse=True)
    ticks = [f"{mean:.3g}" for mean in np.bincount(part, known) / np.bincount(part)]
    figure = sheet(6.0, 3.2)
    shares, rates = figure.subplots(1, 2)
    shares.bar(found, 100 * np.bincount(part) / len(part), color=BLUE)
    name = "Intervals" if wide else "Sets"
    shares.set(ylabel=f"{name} (%)", title=f"Mean size {known.mean():.3g}")
    rates.bar(found, 100 * np.bincount(part, held) / np.bincount(part), color=BLUE)
    rates.axhline(100 * level, color=RED, linewidth=1, label=f"Wanted of all: {100 * level:g} %")
    rates.set(ylabel=f"{name} that hold the truth (%)", ylim=(0, 105))
    rates.set_title(f"Of all: {100 * held.mean():.1f} %")
    rates.legend(fontsize=8, loc="lower right")
    each = slice(None, None, max(1, len(found) // 12))
    for axes in (shares, rates):
        axes.set_xlabel("Mean width of a fifth" if wide else "Classes in the set")
        axes.set_xticks(found[each], ticks[each])
        open_frame(axes)
    return figure
