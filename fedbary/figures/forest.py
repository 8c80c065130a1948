"""A forest: coefficients with their intervals, and the sites' own estimates beside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedbary.figures.sheet import BLUE, GREY, ORANGE, literal, open_frame, sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Forest(NamedTuple):
    """One outcome's t terms.

    Attributes
    ----------
    estimates, ends : ndarray
        Estimates (t,), and the lower and upper end of their intervals, (2, t).
    random : ndarray
        Ends of the intervals where sites differ, (2, t); NaN for none.
    sites : ndarray
        Own estimates of K sites and their standard deviations, (K, 2, t); NaN for unknown ones.
    """

    estimates: np.ndarray
    ends: np.ndarray
    random: np.ndarray
    sites: np.ndarray


def forest(names: Sequence[str], outcomes: Mapping[str, Forest], label: str, ratio: bool) -> Figure:
    """Draw a panel for each outcome, three in a row, and a line for each term.

    Parameters
    ----------
    names
        Names of the terms.
    outcomes
        Their coefficients by the outcome's name.
    label
        The axis's.
    ratio
        True: the axis shows exp of what is drawn, on a logarithmic scale.
    """
    wide = min(3, len(outcomes))
    high = -(-len(outcomes) // wide)
    figure = sheet(2.2 + 3.6 * wide, high * (1.3 + 0.26 * len(names)))
    panels = figure.subplots(high, wide, sharey=True, squeeze=False).flatten()
    places = np.arange(len(names))
    shown = np.exp if ratio else np.asarray
    for axes, (outcome, held) in zip(panels, outcomes.items(), strict=False):
        span = _span(held)
        own, stds = np.clip(held.sites[:, 0], *span), held.sites[:, 1]
        sizes = np.nan_to_num((np.nanmin(stds, 0, initial=np.inf) / stds) ** 2)
        axes.axvline(shown(0.0), color=GREY, linewidth=0.8)
        for site, size in zip(own, sizes, strict=True):
            axes.scatter(
                shown(site), places + 0.25, 2 + 20 * size, GREY,
                alpha=0.7, linewidths=0, clip_on=False,
            )  # fmt: skip
        axes.hlines(places, *shown(held.ends), color=BLUE, linewidth=2)
        axes.plot(shown(held.estimates), places, "s", color=BLUE, markersize=4)
        axes.hlines(places - 0.25, *shown(held.random), color=ORANGE, linewidth=2)
        if ratio:
            axes.set_xscale("log")
            ticks = _ticks(*shown(np.array(span)))
            axes.set_xticks(ticks, [f"{tick:.3g}" for tick in ticks])
            axes.minorticks_off()
        axes.set(xlim=shown(np.array(span)), ylim=(len(names) - 0.4, -0.6), xlabel=label)
        axes.set_yticks(places, [literal(name) for name in names])
        axes.set_title(literal(outcome), fontsize=10)
        open_frame(axes)
    for axes in panels[len(outcomes) :]:
        axes.set_visible(False)
    looks = [
        ("s-", BLUE, "all sites", True),
        ("-", ORANGE, "where sites differ: Hartung-Knapp",
         any(np.isfinite(held.random).any() for held in outcomes.values())),
        ("o", GREY, "each site alone, larger where surer",
         any(np.isfinite(held.sites).any() for held in outcomes.values())),
    ]  # fmt: skip
    figure.legend(
        handles=[
            panels[0].plot([], [], look, color=color, markersize=4, label=name)[0]
            for look, color, name, is_drawn in looks
            if is_drawn
        ],
        loc="outside lower center",
        ncols=3 if wide > 1 else 1,
        fontsize=8,
        frameon=False,
    )
    return figure


def _span(held: Forest) -> tuple[float, float]:
    """Return the ends of an axis that shows 0 and all intervals but the widest, cut off there."""
    widths = held.ends[1] - held.ends[0]
    usual = held.ends[:, widths <= 10 * np.median(widths)]
    random = held.random[:, held.random[1] - held.random[0] <= 10 * np.median(widths)]
    finite = np.concatenate([usual.flatten(), random.flatten(), [0.0]])
    low, high = float(finite.min()), float(finite.max())
    return low - 0.05 * (high - low), high + 0.05 * (high - low)


def _ticks(low: float, high: float) -> np.ndarray:
    """Return three to eight numbers that people count by in a range of a logarithmic axis."""
    decades = 10.0 ** np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
    for steps in ([1, 2, 5], [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9], np.arange(1, 10, 0.05)):
        ticks = np.outer(decades, steps).flatten()
        ticks = ticks[(ticks >= low) & (ticks <= high)]
        if len(ticks) > 2:
            break
    return np.asarray(ticks[:: max(1, -(-len(ticks) // 8))])
