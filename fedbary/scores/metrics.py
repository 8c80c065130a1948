"""Accuracy, calibration and fairness of predictions."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedbary.errors import SettingError

NLL_OFFSET = 1e-8
"""Number added to a probability before its logarithm is taken, as in the papers' code."""

NLL_RANGE = (-2 * NLL_OFFSET, 18.5)
"""Range of the mean NLL: from −log(1 + 1e-8) to −log 1e-8 = 18.42, plus rounding."""


def evaluate(
    probs: Tensor, labels: Tensor, ece_bins: int = 15, weights: Tensor | None = None
) -> dict[str, float]:
    """Score predicted class probabilities.

    - ``accuracy``: the fraction whose most probable class is the label;
    - ``nll``: mean of −log(p_y + 1e-8), in nats, the offset being that of the papers' code;
    - ``ece``: expected calibration error, Σ_b n_b/N |acc_b − conf_b| over equal bins of the
      largest probability (l1, a fraction), see `Reliability`;
    - ``brier``: mean of Σ_c (p_c − 1[y = c])², in [0, 2].

    Parameters
    ----------
    probs : Tensor
        Probabilities, (N, C), floats, rows summing to one.
    labels : Tensor
        Classes, (N,), int64 in 0..C-1.
    ece_bins : int
        Bins of the calibration error, at least 1.
    weights : Tensor, optional
        Weight of each example, (N,), at least 0 and not all 0; by default all alike.

    Raises
    ------
    ValueError
        The probabilities are invalid (NaN, say), or the shapes do not match.
    SettingError
        ``ece_bins`` is below 1.

    References
    ----------
    Guo et al., On Calibration of Modern Neural Networks, ICML 2017; Brier, Verification of
    Forecasts Expressed in Terms of Probability, 1950.
    """
    diagram = reliability(probs, labels, ece_bins, weights)
    probs = _checked(probs, labels, ece_bins)

    def mean(values: Tensor) -> float:
        if weights is None:
            return float(values.mean())
        return float(weights.double() @ values / weights.double().sum())

    of_label = probs.gather(1, labels[:, None]).double()
    brier = probs.double().square().sum(1) - 2 * of_label[:, 0] + 1
    return {
        "accuracy": mean(probs.argmax(1).eq(labels).double()),
        "nll": mean(-(of_label[:, 0] + NLL_OFFSET).log()),
        "ece": diagram.ece,
        "brier": mean(brier),
    }


@dataclass(frozen=True, eq=False)
class Reliability:
    """Confidence against accuracy, bin by bin.

    Attributes
    ----------
    confidence, accuracy : ndarray
        Means over the examples of a bin, fractions, 0 where it is empty; (bins + 1,).
    count : ndarray
        Examples of a bin, (bins + 1,), or the sum of their weights.

    Bin b holds confidences in [b/bins, (b+1)/bins). One further bin, the last, holds those of
    exactly 1, as in torchmetrics. `ece` equals torchmetrics' ``multiclass_calibration_error``,
    which would take seconds to import.
    """

    confidence: np.ndarray
    accuracy: np.ndarray
    count: np.ndarray

    @property
    def ece(self) -> float:
        """Expected calibration error, Σ_b n_b/N |acc_b − conf_b|, a fraction."""
        gaps = np.abs(self.accuracy - self.confidence)
        return float((self.count * gaps).sum() / self.count.sum())


def label_share_weights(labels: Tensor, counts: Sequence[int]) -> Tensor | None:
    """Return weights that give examples the label shares of other data.

    An example of class c has the weight (n_c / Σ n) / N_c. There are N_c examples of the class
    here, and n_c in the other data.

    Parameters
    ----------
    labels : Tensor
        Classes, (N,), int64.
    counts : sequence of int
        Numbers of the other data's examples of each class, (C,).

    Returns
    -------
    Tensor or None
        (N,), float64, on the labels' device. Their sum is below 1 if some of the other data's
        classes have no example here. None if none of them has one.
    """
    there = torch.tensor(counts, dtype=torch.float64, device=labels.device)
    here = torch.bincount(labels, minlength=len(counts)).double()
    weights = (there / there.sum().clamp_min(1) / here.clamp_min(1))[labels]
    return weights if weights.sum() > 0 else None


def reliability(
    probs: Tensor, labels: Tensor, bins: int = 15, weights: Tensor | None = None
) -> Reliability:
    """Return mean confidence, accuracy and count per bin of the largest probability.

    Parameters and errors are those of `evaluate`. The result's `ece` is that of `evaluate`.
    """
    confidence, predicted = _checked(probs, labels, bins).max(1)
    edges = torch.linspace(0, 1, bins + 1, device=confidence.device)
    index = (torch.bucketize(confidence, edges, right=True) - 1).cpu().numpy()
    each = np.ones(len(index)) if weights is None else weights.double().cpu().numpy()
    count = np.bincount(index, each, bins + 1)
    means = [
        np.bincount(index, each * values.cpu().numpy(), bins + 1) / np.where(count > 0, count, 1)
        for values in (confidence, predicted.eq(labels))
    ]
    if weights is None:
        count = count.astype(int)
    return Reliability(means[0], means[1], count)


def ece_by_chance(probs: Tensor, bins: int, seed: int, repeats: int = 100) -> float:
    """Return the calibration error that a calibrated model of these confidences has by chance.

    It is E Σ_b n_b/N |acc_b − conf_b| if each prediction is right with the probability of its
    confidence. A calibrated model has this ECE on average with N examples. A lower ECE is no
    evidence of better calibration.

    Parameters
    ----------
    probs : Tensor
        Probabilities, (N, C).
    bins : int
        Bins of the calibration error, at least 1.
    seed : int
        Seed of the draws.
    repeats : int
        Number of draws, at least 1; the result is their mean.

    References
    ----------
    Bröcker and Smith, Increasing the Reliability of Reliability Diagrams, 2007, whose consistency
    resampling this is; Roelofs et al., Mitigating Bias in Calibration Error Estimation, 2022.
    """
    rng = np.random.default_rng(seed)
    confidence = probs.detach().double().amax(1).clamp(0, 1).cpu().numpy()
    index = np.minimum((confidence * bins).astype(int), bins)
    gaps = [
        np.bincount(index, (rng.random(len(index)) < confidence) - confidence, bins + 1)
        for _ in range(repeats)
    ]
    return float(np.abs(gaps).sum(1).mean() / len(index))


def fairness(accuracies: Sequence[float], weights: Sequence[float]) -> dict[str, float]:
    """Summarise the clients' accuracies.

    ``weighted_accuracy`` is Σ w_k a_k / Σ w_k, ``worst10_accuracy`` the plain mean over the worst
    tenth of the clients, rounded up to whole clients (the image protocol of BA-BFL).

    Parameters
    ----------
    accuracies : sequence of float
        Accuracy per client, (K,), fractions.
    weights : sequence of float
        Weight per client, (K,), at least 0 and not all 0, such as its number of examples.

    Raises
    ------
    ValueError
        There is no client, the lengths differ, or a value is not finite or a weight negative.
    """
    a, w = np.asarray(accuracies, dtype=float), np.asarray(weights, dtype=float)
    if a.ndim != 1 or a.size == 0 or a.shape != w.shape:
        raise ValueError(f"one accuracy and one weight per client; got {a.shape} and {w.shape}")
    if not (np.isfinite(a).all() and np.isfinite(w).all() and w.min() >= 0 and w.sum() > 0):
        raise ValueError("accuracies must be finite, weights finite, at least 0 and not all 0")
    worst = np.sort(a)[: -(-a.size // 10)]
    return {"weighted_accuracy": float(w @ a / w.sum()), "worst10_accuracy": float(worst.mean())}


def auroc(in_distribution: Tensor, out_of_distribution: Tensor) -> float | None:
    """Score the detection of unfamiliar inputs: P(score out > score in), ties counted half.

    1 is perfect, ½ is chance. None if all scores are equal, as the mutual information of a single
    network is.

    Parameters
    ----------
    in_distribution, out_of_distribution : Tensor
        Uncertainty of each input, (N,) and (M,), higher for the more unfamiliar.
    """
    from sklearn.metrics import roc_auc_score

    scores = torch.cat([in_distribution, out_of_distribution]).double().cpu().numpy()
    if np.ptp(scores) == 0:
        return None
    labels = np.repeat([0, 1], [len(in_distribution), len(out_of_distribution)])
    return float(roc_auc_score(labels, scores))


def accuracy_after_rejection(
    probs: Tensor, labels: Tensor, uncertainty: Tensor, rejected: Sequence[float]
) -> list[float]:
    """Return the selective accuracy: the accuracy without the most uncertain fraction.

    Parameters
    ----------
    probs, labels : Tensor
        Probabilities (N, C) and classes (N,).
    uncertainty : Tensor
        The highest are rejected first, (N,); ties go in the inputs' order.
    rejected : sequence of float
        Fractions in [0, 1); at least one input is always kept.
    """
    order = uncertainty.argsort(stable=True)
    correct = (probs.argmax(1) == labels)[order].double().cumsum(0)
    kept = [max(1, round(len(labels) * (1 - fraction))) for fraction in rejected]
    return [float(correct[count - 1] / count) for count in kept]


def _checked(probs: Tensor, labels: Tensor, bins: int) -> Tensor:
    """Return probabilities as float32 in [0, 1]."""
    if bins < 1:
        raise SettingError("ece_bins", bins, "an integer of at least 1")
    if probs.ndim != 2 or labels.shape != probs.shape[:1] or probs.numel() == 0:
        shapes = f"{tuple(probs.shape)} and {tuple(labels.shape)}"
        raise ValueError(f"probs must be (N, C) and labels (N,) with N at least 1; got {shapes}")
    if not probs.isfinite().all():
        bad = int((~probs.isfinite()).any(1).sum())
        raise ValueError(f"probs hold NaN or infinity in {bad} of {len(probs)} rows")
    probs = probs.float()
    if probs.min() < -1e-4 or (probs.sum(1) - 1).abs().max() > 1e-2:
        raise ValueError("probs are no probabilities: rows must be at least 0 and sum to 1")
    return probs.clamp(0, 1)
