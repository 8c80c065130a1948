"""Pictures of a run: partition, reliability, sets, gains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedbary.figures.sheet import BLUE, GREEN, GREY, ORANGE, RED, SKY, open_frame, sheet
from fedbary.predictive import Forecast, Prediction
from fedbary.scores import regression
from fedbary.scores.metrics import Reliability, reliability

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure


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


ANNOTATED_CELLS = 150
NAMED_SITES = 40
MOST_ROWS = 500
LONGEST_LABEL = 24
LONGEST_LEVEL = 6

Curve = tuple[str, float, str, str]
"""A score whose course is drawn: its name, factor, label and colour."""


def partition_heatmap(
    counts: np.ndarray, sites: Sequence[str] = (), classes: Sequence[str] = ()
) -> Figure:
    """Draw the number of examples of each class at each client.

    Parameters
    ----------
    counts : ndarray
        Examples, (clients, classes). Up to 150 cells bear their number. Of more than 500 clients
        neighbours share a row, which shows their mean.
    sites : sequence of str
        The clients' names; none for clients that have but a number. Up to 40 are drawn.
    classes : sequence of str
        The classes' names; none for classes that have but a number. Up to 40 are drawn.
    """
    clients, columns = counts.shape
    numbered = counts.size <= ANNOTATED_CELLS
    named = 0 < len(sites) <= NAMED_SITES
    names = [_shortened(site) for site in sites] if named else []
    together = -(-clients // MOST_ROWS)
    starts = np.arange(0, clients, together)
    rows = np.add.reduceat(counts, starts) / np.diff(starts, append=clients)[:, None]
    height = 0.32 * clients if numbered or named else max(4.0, 0.07 * len(rows))
    width = 1.8 + 0.55 * columns + 0.07 * max(map(len, names), default=0)
    figure = sheet(max(4.0, width), max(3.0, 1.1 + height))
    axes = figure.subplots()
    extent = (-0.5, columns - 0.5, together * len(rows) - 0.5, -0.5)
    shown, least = np.ma.masked_equal(rows, 0), 1 / together
    image = axes.imshow(shown, cmap="YlGnBu", aspect="auto", vmin=least, extent=extent)
    axes.set_facecolor("lightgrey")
    axes.set(xlabel="Class", ylabel=_clients_label(counts, sites))
    axes.set_xticks(range(columns))
    if 0 < len(classes) <= NAMED_SITES:
        labels = [_shortened(name) for name in classes]
        upright = 90 if max(map(len, labels)) > LONGEST_LEVEL else 0
        axes.set_xticks(range(columns), labels, rotation=upright, parse_math=False)
    whole_numbers(axes.yaxis)
    if named:
        axes.set_yticks(range(clients), names, parse_math=False)
    of = "Examples" if together == 1 else f"Mean over {together} clients' examples"
    figure.colorbar(image, label=f"{of} (grey: none)", pad=0.02)
    if numbered:
        if not named:
            axes.set_yticks(range(clients))
        dark = counts.max() / 2
        for (client, label), count in np.ndenumerate(counts):
            color = "white" if count > dark else "black"
            axes.text(label, client, f"{count}", ha="center", va="center", size=8, color=color)
    return figure


def reliability_diagram(reliability: Reliability, title: str) -> Figure:
    """Draw accuracy against confidence bin by bin, and the number of predictions in each bin.

    A bar reaches from 0 to the accuracy of its bin. The gap between accuracy and mean confidence is
    orange for overconfidence, light blue for underconfidence. A black line covers 95 % of a
    calibrated model's accuracies, c ± 1.96 √(c (1 − c)/n): gaps within it are chance.

    Parameters
    ----------
    reliability : Reliability
        As `scores.metrics.reliability` returns it.
    title : str
        Heading; the expected calibration error is added.
    """
    count, accuracy = reliability.count, reliability.accuracy
    confidence = reliability.confidence
    share = 100 * count / count.sum()
    width = 1 / len(count)
    centre = (np.arange(len(count)) + 0.5) * width

    figure = sheet(4.2, 5.8)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    both = np.minimum(accuracy, confidence)
    bars = (
        (both, 0, BLUE, "Accuracy"),
        (confidence - both, both, ORANGE, "Overconfident by"),
        (accuracy - both, both, SKY, "Underconfident by"),
    )
    for height, bottom, color, label in bars:
        upper.bar(centre, height, width, bottom, color=color, label=label)
    upper.plot([0, 1], [0, 1], "--", color="black", linewidth=1, label="Perfect calibration")
    here = count > 0
    chance = 1.96 * np.sqrt(confidence * (1 - confidence) / np.maximum(count, 1))
    low, high = (np.clip(confidence + sign * chance, 0, 1)[here] for sign in (-1, 1))
    upper.vlines(centre[here], low, high, color="black", linewidth=1, label="Chance, 95 %")
    upper.set(xlim=(0, 1), ylim=(0, 1), ylabel="Accuracy (fraction)")
    upper.set_title(f"{title}\nECE {100 * reliability.ece:.2f} %", size=11, parse_math=False)
    lower.bar(centre, share, width, color=GREY)
    lower.set(xlabel="Confidence (fraction)", ylabel="Predictions (%)")
    for axes in (upper, lower):
        axes.grid(alpha=0.3)
        axes.set_axisbelow(True)
        open_frame(axes)
    handles, labels = upper.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=8)
    return figure


def coverage_curve(levels: np.ndarray, covered: np.ndarray, title: str) -> Figure:
    """Draw the coverage of central intervals against their probability.

    Parameters
    ----------
    levels, covered : ndarray
        The intervals' probabilities and the fractions of the targets in them, (L,).
    title : str
        Heading.
    """
    figure = sheet(4.2, 4.2)
    axes = figure.subplots()
    axes.plot([0, 100], [0, 100], "--", color="black", linewidth=1, label="Perfect calibration")
    axes.plot(100 * levels, 100 * covered, color=BLUE, label="Predictions")
    over, under = covered < levels, covered > levels
    for where, color, label in ((over, ORANGE, "Too narrow"), (under, SKY, "Too wide")):
        axes.fill_between(
            100 * levels, 100 * levels, 100 * covered, where, color=color, alpha=0.5, label=label
        )
    axes.set(xlim=(0, 100), ylim=(0, 100), aspect="equal")
    axes.set(xlabel="Central interval (%)", ylabel="Targets in it (%)")
    axes.set_title(title, size=11, parse_math=False)
    axes.legend(loc="upper left", fontsize=8)
    axes.grid(alpha=0.3)
    open_frame(axes)
    return figure


def named_classes(classes: Sequence[str]) -> Sequence[str]:
    """Return the classes' names; none for classes that have but a number."""
    numbers = all(name == str(label) for label, name in enumerate(classes))
    return () if numbers else classes


def _clients_label(counts: np.ndarray, sites: Sequence[str]) -> str:
    if sites:
        return "Site"
    sizes = counts.sum(1)
    return "Client (largest first)" if (sizes[:-1] >= sizes[1:]).all() else "Client"


def _shortened(name: str) -> str:
    return name if len(name) <= LONGEST_LABEL else f"…{name[1 - LONGEST_LABEL :]}"


def whole_numbers(axis: Axis) -> None:
    """Let an axis have ticks at whole numbers alone."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))


LEVELS = np.linspace(0.01, 0.99, 99)
"""Central intervals whose coverage is drawn."""


def reliability_picture(
    prediction: Prediction | Forecast, y: Tensor, ece_bins: int = 15, title: str = ""
) -> Figure:
    """Draw confidence against accuracy; for numbers, the coverage of central intervals.

    Parameters
    ----------
    prediction, y, ece_bins
        As in `score`.
    title : str
        Heading.
    """
    if isinstance(prediction, Forecast):
        held = regression.coverage(
            prediction, y.to(prediction.mean.device), torch.from_numpy(LEVELS)
        )
        return coverage_curve(LEVELS, held.cpu().numpy(), title)
    diagram = reliability(prediction.probs, y.to(prediction.probs.device), ece_bins)
    return reliability_diagram(diagram, title)
