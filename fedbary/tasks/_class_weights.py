"""Cross-entropy with weights for rare classes, and what the weights do to probabilities.

`balanced` weights w_c = N / (K N_c) give every class the same total weight N/K. N_c counts the rows
of class c **over all clients**, so that every client minimises its part of one objective. With
counts of each client alone, weights would differ between clients, and there would be no common
objective.

The price is calibration. The best probabilities for weighted rows are

    q(c | x) = w_c p(c | x) / Σ_d w_d p(d | x),

those of a population in which all classes are equally frequent. They overstate rare classes on
purpose, so NLL and Brier score of real rows become worse. The ECE of the largest probability need
not show it: an overstated and an understated class can cancel in a bin. `natural` undoes the
weights, p ∝ q / w. With two classes this keeps the ranking of rows, and so AUROC and the
sensitivity at a specificity. It only changes which class is the more probable. Use weights to learn
a rare class (in a few steps, say), not to move a threshold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from fedbary.errors import SettingError

CLASS_WEIGHTS = ("none", "balanced")


def class_weights(scheme: str, counts: Sequence[int] | Tensor) -> Tensor:
    """Return the weight of each class, (K,) float32: 1, or N / (K N_c).

    A class that no client holds has weight 1; N and K are then those of the classes that are held.
    The weights' mean over the counted rows is 1: the data count as much as without weights.

    Parameters
    ----------
    scheme : str
        ``none`` or ``balanced``.
    counts : sequence of int
        N_c, the training rows of each class over all clients, (K,).

    Raises
    ------
    SettingError
        If there is no such scheme.
    ValueError
        If a count is negative or all are 0.
    """
    if scheme not in CLASS_WEIGHTS:
        raise SettingError("class_weights", scheme, ", ".join(CLASS_WEIGHTS))
    held = torch.as_tensor(counts, dtype=torch.float64)
    if not (held >= 0).all() or not held.sum() > 0:
        raise ValueError(f"counts of classes must be at least 0 and not all 0; got {counts}")
    if scheme == "none":
        return torch.ones(len(held))
    equal = held.sum() / (held > 0).sum()
    return torch.where(held > 0, equal / held, 1.0).float()


def weighted_cross_entropy(weights: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the loss (1/B) Σ_i w_{y_i} · −log softmax(logits_i)[y_i], in nats.

    The sum is divided by the number of rows B. PyTorch's ``weight=`` divides by the sum of the
    weights instead. The influence of a rare row would then depend on the other rows of its batch.
    Weights would cancel in batches, and at clients, with a single class.

    Parameters
    ----------
    weights : Tensor
        One per class, (K,), as in `class_weights`.

    Returns
    -------
    Callable
        Loss of logits (B, K) and labels (B,); the local methods take it as `nll`.
    """

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        total = functional.cross_entropy(logits, labels, weights.to(logits), reduction="sum")
        return total / len(labels)

    return loss


def natural(logits: Tensor, weights: Tensor) -> Tensor:
    """Return logits whose softmax p ∝ q / w is under the classes' own frequencies.

    Parameters
    ----------
    logits : Tensor
        Logits of a network trained with the weights, (…, K); their softmax is q.
    weights : Tensor
        w, (K,), above 0.
    """
    return logits - weights.to(logits.device).log()
