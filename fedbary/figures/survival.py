"""Curves of survival with their intervals, and the numbers at risk below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedbary.figures.sheet import COLORS, literal, open_frame, sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 8
"""Curves of a panel; the groups of most rows are drawn."""

ACROSS, LEAST_GAP, POINTS = 2, 0.12, 20
"""Panels beside each other; gap of two numbers at risk, in parts of the axis; points a cut."""


class Curve(NamedTuple):
    """One group's survival at K times, from 1 at time 0.

    Attributes
    ----------
    time, rows : ndarray
        The times, and rows at risk after the time before, (K,).
    survival, low, high : ndarray
        Survival until each time, and the ends of its interval, (K,).
    """

    time: np.ndarray
    rows: np.ndarray
    survival: np.ndarray
    low: np.ndarray
    high: np.ndarray


def survival_curves(panels: Mapping[str, Mapping[str, Curve]], label: str) -> Figure:
    """Draw a panel for each title, with a curve for each name.

    The hazard is constant between two times, so that a curve bends there.

    Parameters
    ----------
    panels
        Curves by their names, by the panel's title.
    label
        What the times are.
    """
    drawn = {
        title: dict(sorted(held.items(), key=lambda one: -one[1].rows[:1].sum())[:MOST])
        for title, held in panels.items()
    }
    across, down = min(ACROSS, len(drawn)), -(-len(drawn) // ACROSS)
    below = 0.2 + 0.16 * max(map(len, drawn.values()))
    figure = sheet(4.6 * across, (3.4 + below) * down)
    parts = np.ravel(figure.subfigures(down, across, squeeze=False))
    for part, (title, held) in zip(parts, drawn.items(), strict=False):
        axes, numbers = part.subplots(2, 1, sharex=True, height_ratios=[2.6, below])
        end = max(curve.time[-1] for curve in held.values())
        for color, (name, curve) in zip(COLORS, held.items(), strict=False):
            at = np.concatenate([[0.0], curve.time])
            fine = np.interp(np.arange((len(at) - 1) * POINTS + 1) / POINTS, np.arange(len(at)), at)
            middle, low, high = (
                100 * np.exp(np.interp(fine, at, np.log([1.0, *np.maximum(each, 1e-9)])))
                for each in curve[2:]
            )
            axes.plot(fine, middle, color=color, label=literal(name))
            axes.fill_between(fine, low, high, color=color, alpha=0.15, linewidth=0)
        axes.set(ylabel="Survival (%)", xlim=(0, end), ylim=(0, 101))
        axes.set_title(title, size=10, parse_math=False)
        axes.grid(alpha=0.3)
        if len(held) > 1:
            axes.legend(fontsize=8, loc="lower left")
        _write_numbers(numbers, held, end)
        numbers.set_xlabel(literal(label))
        open_frame(axes)
    return figure


def _write_numbers(axes, held: Mapping[str, Curve], end: float) -> None:  # type: ignore[no-untyped-def]
    """Write rows at risk in a line for each curve."""
    axes.set(ylim=(len(held) - 0.5, -0.5))
    axes.set_title("At risk", size=8, loc="left", pad=2)
    for line, (color, curve) in enumerate(zip(COLORS, held.values(), strict=False)):
        starts = np.concatenate([[0.0], curve.time[:-1]])
        for place in spaced(starts, LEAST_GAP * end):
            count = curve.rows[place]
            said = f"{count:.0f}" if count == count else ""
            axes.text(starts[place], line, said, color=color, size=8, ha="center", va="center")
    axes.set_yticks([])
    axes.spines[["top", "right", "left", "bottom"]].set_visible(False)
    axes.tick_params(bottom=True)


def spaced(at: Sequence[float] | np.ndarray, gap: float) -> list[int]:
    """Return places of increasing numbers so that each is at least a gap after the one before."""
    kept = list[int]()
    for place, number in enumerate(at):
        if not kept or number - at[kept[-1]] >= gap:
            kept.append(place)
    return kept
