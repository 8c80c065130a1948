"""Pictures of predictions beside the truth: risks of an event, confusion, residuals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedbary.figures.sheet import BLUE, GREY, ORANGE, RED, literal, open_frame, sheet
from fedbary.scores.binary import Bins, net_benefit
from fedbary.scores.metrics import Roc

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIDE = 4.4
"""Width and height of a picture, inches."""


def _panel(xlabel: str, ylabel: str, title: str) -> tuple[Figure, Axes]:
    figure = sheet(SIDE, SIDE)
    axes = figure.subplots()
    axes.set(xlabel=literal(xlabel), ylabel=literal(ylabel))
    axes.set_title(title, size=11, parse_math=False)
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    open_frame(axes)
    return figure, axes


def risk_calibration(bins: Bins, event: str) -> Figure:
    """Draw observed against predicted risk, a point a group with its 95 % interval, in per cent."""
    figure, axes = _panel(f"Predicted risk of {event} (%)", f"Observed {event} (%)", "Calibration")
    at, held = 100 * bins.risk, 100 * bins.observed
    ends = np.nan_to_num(np.abs(100 * np.stack([bins.low, bins.high]) - held))
    axes.plot([0, 100], [0, 100], "--", color="black", linewidth=1, label="Perfect")
    axes.errorbar(at, held, ends, fmt="o", color=BLUE, markersize=5, label="Tenths of the rows")
    axes.set(
        xlim=(0, 1.1 * at.max()), ylim=(0, min(101, 1.25 * np.nanmax([*(held + ends[1]), *at])))
    )
    axes.legend(fontsize=8, loc="upper left")
    return figure


def precision_recall(curve: Roc, event: str) -> Figure:
    """Draw precision against sensitivity, and the precision of a model without inputs."""
    found, false = curve.true_positives[1:], curve.false_positives[1:]
    figure, axes = _panel("Sensitivity (%)", "Positive predictive value (%)", "Precision, recall")
    axes.plot(100 * found / found[-1], 100 * found / (found + false), color=BLUE, label="Model")
    share = 100 * found[-1] / (found[-1] + false[-1])
    axes.axhline(share, color=GREY, linewidth=1, label=literal(f"Share of {event}: {share:.1f} %"))
    axes.set(xlim=(0, 101), ylim=(0, 101))
    axes.legend(fontsize=8)
    return figure


def decision_curve(risk: np.ndarray, event: np.ndarray, most: float) -> Figure:
    """Draw the net benefit of the model, of treating all and of treating none, to a threshold."""
    thresholds = np.linspace(0, most, 101)[1:]
    figure, axes = _panel(
        "Risk from which one acts (%)", "Net benefit, per 100 rows", "Decision curve"
    )
    for risks, color, label in ((risk, BLUE, "Model"), (np.ones(len(risk)), GREY, "Act on all")):
        gain = 100 * net_benefit(risks, event, thresholds)
        axes.plot(100 * thresholds, gain, color=color, label=label)
    axes.axhline(0, color="black", linewidth=1, label="Act on none")
    top = 100 * event.mean()
    axes.set(xlim=(0, 100 * most), ylim=(-0.3 * top, 1.1 * top))
    axes.legend(fontsize=8)
    return figure


MOST_CELLS = 12
"""Classes up to which cells bear their number."""


def confusion(counts: np.ndarray, classes: Sequence[str]) -> Figure:
    """Draw how rows of each true class (first axis) are predicted, in per cent of the class."""
    of_class = counts.sum(1, keepdims=True)
    shares = 100 * counts / np.maximum(of_class, 1)
    names = [name if len(name) <= 16 else f"{name[:15]}…" for name in classes]
    side = max(SIDE, 1.6 + 0.36 * min(len(names), 40))
    figure = sheet(side + 0.4, side)
    axes = figure.subplots()
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=100)
    each = range(0, len(names), -(-len(names) // 40))
    upright = 90 if max(map(len, names)) > 3 else 0
    axes.set_xticks(each, [names[k] for k in each], rotation=upright, parse_math=False)
    axes.set_yticks(each, [names[k] for k in each], parse_math=False)
    axes.set(xlabel="Predicted", ylabel="True")
    axes.set_title("Confusion", size=11)
    if len(names) <= MOST_CELLS:
        for (row, column), count in np.ndenumerate(counts):
            color = "white" if shares[row, column] > 50 else "black"
            axes.text(column, row, f"{count}", ha="center", va="center", size=8, color=color)
    figure.colorbar(image, label="Rows of the true class (%)", shrink=0.8)
    return figure


def pit_histogram(pit: np.ndarray, bins: int = 10) -> Figure:
    """Draw where targets lie in their forecast distributions; a calibrated forecast is flat."""
    figure, axes = _panel("Probability below the target (%)", "Rows (%)", "PIT")
    counts = np.histogram(pit, bins, (0, 1))[0]
    centres = 100 * (np.arange(bins) + 0.5) / bins
    axes.bar(centres, 100 * counts / len(pit), 100 / bins, color=BLUE, edgecolor="white")
    share, error = 100 / bins, 196 * np.sqrt((1 - 1 / bins) / bins / len(pit))
    axes.axhspan(
        share - error, share + error, color=ORANGE, alpha=0.3, zorder=0.5, label="Chance, 95 %"
    )
    axes.axhline(share, color=RED, linewidth=1, label="Calibrated")
    axes.set(xlim=(0, 100), ylim=(0, 1.3 * axes.get_ylim()[1]))
    axes.legend(fontsize=8, loc="upper center")
    return figure


def residuals(mean: np.ndarray, target: np.ndarray, std: np.ndarray, name: str) -> Figure:
    """Draw target − forecast against the forecast, and the mean 95 % interval around it."""
    figure, axes = _panel(f"Predicted {name}", f"{name} − predicted", "Residuals")
    axes.plot(mean, target - mean, ".", color=BLUE, markersize=3, alpha=0.6)
    axes.axhline(0, color="black", linewidth=1)
    order = np.argsort(mean)
    width = 1.96 * std[order]
    axes.fill_between(mean[order], -width, width, color=BLUE, alpha=0.15, label="95 % interval")
    axes.legend(fontsize=8, loc="upper left")
    return figure
