"""Scores of predicted classes of rows, and their line in a log."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from torch import Tensor

from fedbary.scores.metrics import Roc, evaluate
from fedbary.texts import cut, shown

SCORES = ("accuracy", "nll", "ece", "brier", "auroc", "sensitivity")


def score(
    probs: Tensor, labels: Tensor, ece_bins: int = 15, specificity: float = 0.95
) -> dict[str, float]:
    """Score predicted class probabilities.

    - ``accuracy``, ``nll``, ``ece``, ``brier``: see `fedbary.scores.metrics.evaluate`;
    - ``auroc``: P(score of a positive row > that of a negative one), ties counted half;
    - ``sensitivity``: at a chosen specificity, see `fedbary.scores.metrics.Roc.sensitivity`.

    With two classes the second is positive, and its probability is the score. With more, each class
    is positive once, against the rest, and the values are plain means over the classes. A class
    that has no row, or every row, is left out; the value is NaN if no class is left.

    Parameters
    ----------
    probs : Tensor
        Probabilities, (N, K), rows summing to one.
    labels : Tensor
        Classes, (N,), int64 in 0..K-1.
    ece_bins : int
        Bins of the calibration error, at least 1.
    specificity : float
        From 0 to 1.

    Raises
    ------
    ValueError
        The probabilities are invalid (NaN, say), or the shapes do not match.
    SettingError
        ``ece_bins`` or ``specificity`` is out of its range.
    """
    scores = evaluate(probs, labels, ece_bins)
    curves = rocs(probs, labels).values()
    scores["auroc"] = _mean(curve.auroc for curve in curves)
    scores["sensitivity"] = _mean(curve.sensitivity(specificity) for curve in curves)
    return scores


def rocs(probs: Tensor, labels: Tensor) -> dict[int, Roc]:
    """Return the ROC curve of each positive class, by its label.

    With two classes that is label 1, with more every label.
    """
    classes = range(probs.shape[1]) if probs.shape[1] > 2 else (1,)
    return {label: Roc.of(probs[:, label], labels == label) for label in classes}


def left_out(curves: Mapping[str, Roc]) -> str:
    """Return a line on the classes that a mean over ROC curves leaves out, by name; "" for none.

    Nor is there a line if all are: the mean is NaN.
    """
    gone = [name for name, curve in curves.items() if not curve.defined]
    if len(gone) in (0, len(curves)):
        return ""
    counted = f"{len(curves) - len(gone)} of {len(curves)} classes"
    of = shown(", ".join(map(cut, gone)))
    return f"The mean AUROC is over {counted}: all or none of the examples are {of}"


def said(scores: Mapping[str, float], specificity: float) -> str:
    """Return the scores for a log's line."""
    return (
        f"accuracy {100 * scores['accuracy']:.2f} %  NLL {scores['nll']:z.4f}  "
        f"AUROC {100 * scores['auroc']:.2f} %  sensitivity {100 * scores['sensitivity']:.2f} % "
        f"at specificity {100 * specificity:g} %"
    )


def _mean(values: Iterable[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan
