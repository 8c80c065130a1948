"""Picture of the sizes of conformal sets, and the coverage of each size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedbary.figures.sheet import BLUE, RED, open_frame, sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor


def set_size_picture(sets: Tensor, y: Tensor, level: float) -> Figure:
    """Draw the fraction of sets of each size, and their coverage.

    Parameters
    ----------
    sets
        Classes of each set, (N, classes) bool.
    y
        The classes (N,).
    level
        Wanted coverage of all sets together, drawn as a line.
    """
    hits = sets.gather(1, y.to(sets.device)[:, None])[:, 0].double().cpu().numpy()
    sizes = sets.sum(1).cpu().numpy()
    found = np.unique(sizes)
    figure = sheet(6.0, 3.2)
    shares, rates = figure.subplots(1, 2)
    shares.bar(found, [100 * float((sizes == k).mean()) for k in found], color=BLUE)
    shares.set(ylabel="Sets (%)", title=f"Mean size {sizes.mean():.2f}")
    rates.bar(found, [100 * float(hits[sizes == k].mean()) for k in found], color=BLUE)
    rates.axhline(100 * level, color=RED, linewidth=1, label=f"Wanted of all: {100 * level:g} %")
    rates.set(ylabel="Sets that hold the class (%)", ylim=(0, 105))
    rates.set_title(f"Of all: {100 * hits.mean():.1f} %")
    rates.legend(fontsize=8, loc="lower right")
    for axes in (shares, rates):
        axes.set_xlabel("Classes in the set")
        axes.set_xticks(found if len(found) <= 12 else found[:: len(found) // 12])
        open_frame(axes)
    return figure
