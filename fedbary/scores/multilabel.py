"""Scores of labels that do not exclude each other: plain means over the labels."""

from __future__ import annotations

import torch
from torch import Tensor

from fedbary.scores.roc import Roc


def macro_f1(predicted: Tensor, labels: Tensor) -> float:
    """Return the mean over the labels of F1 = 2 TP / (2 TP + FP + FN).

    A label that is neither predicted nor true for any example is left out; NaN if all are.

    Parameters
    ----------
    predicted, labels : Tensor
        (N, labels) of 0 and 1.
    """
    both = (predicted * labels).sum(0).double()
    each = predicted.sum(0) + labels.sum(0)
    return float((2 * both / each)[each > 0].mean())


def macro_auroc(probs: Tensor, labels: Tensor) -> float:
    """Return the mean over the labels of the AUROC, P(score of a positive > score of a negative).

    Ties count half. A label that every example has, or none, is left out; NaN if all are.

    Parameters
    ----------
    probs, labels : Tensor
        Probability of each label, and whether the example has it, (N, labels).
    """
    found = [Roc.of(p, y == 1).auroc for p, y in zip(probs.T, labels.T, strict=True)]
    return float(torch.tensor(found).nanmean())
