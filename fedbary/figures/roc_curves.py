"""The ROC curve of a classifier, with its sensitivity at a chosen specificity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fedbary.figures.sheet import COLORS, GREY, literal, open_frame, sheet
from fedbary.scores.metrics import Roc

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 10
"""The most curves that one picture can show."""


def roc_curves(curves: Mapping[str, Roc], specificity: float, title: str) -> Figure:
    """Draw sensitivity against 1 − specificity, a curve for each positive class.

    Parameters
    ----------
    curves : Mapping[str, Roc]
        Curves by class name; one without positive or negative rows is left out.
    specificity : float
        Specificity of a grey line; the legend has the sensitivity there and the AUROC.
    title : str
        Heading.
    """
    figure = sheet(4.6, 4.6)
    axes = figure.subplots()
    axes.plot([0, 100], [0, 100], "--", color="black", linewidth=1)
    axes.axvline(100 * (1 - specificity), color=GREY, linewidth=1)
    drawn = [(name, curve) for name, curve in curves.items() if curve.defined]
    for index, (name, curve) in enumerate(drawn):
        x = 100 * curve.false_positives / curve.false_positives[-1]
        y = 100 * curve.true_positives / curve.true_positives[-1]
        found = 100 * curve.sensitivity(specificity)
        label = f"{literal(name)}: AUROC {100 * curve.auroc:.1f} %, sensitivity {found:.1f} %"
        axes.plot(x, y, color=COLORS[(index + 1) % len(COLORS)], label=label)
    axes.set(xlim=(-1, 101), ylim=(-1, 101), aspect="equal")
    axes.set(xlabel="1 − specificity (%)", ylabel="Sensitivity (%)")
    axes.set_title(title, size=11, parse_math=False)
    if drawn:
        axes.legend(loc="lower right", fontsize=8)
    axes.grid(alpha=0.3)
    open_frame(axes)
    return figure
