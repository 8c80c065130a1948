"""Accuracy, calibration and fairness of predictions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedbary.errors import SettingError
from fedbary.predictive import Prediction

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
        Means over the examples of a bin, fractions, 0 where it is empty; (bins,).
    count : ndarray
        Examples of a bin, (bins,), or the sum of their weights.

    Bin b holds confidences in [b/bins, (b+1)/bins). The last bin holds a confidence of 1 too.
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
    index = torch.bucketize(confidence, edges[1:-1], right=True).cpu().numpy()
    each = np.ones(len(index)) if weights is None else weights.double().cpu().numpy()
    count = np.bincount(index, each, bins)
    means = [
        np.bincount(index, each * values.cpu().numpy(), bins) / np.where(count > 0, count, 1)
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
    index = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = [
        np.bincount(index, (rng.random(len(index)) < confidence) - confidence, bins)
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
    uncertainty, rejected
        As in `means_after_rejection`.
    """
    return means_after_rejection(probs.argmax(1) == labels, uncertainty, rejected)


def means_after_rejection(
    values: Tensor, uncertainty: Tensor, rejected: Sequence[float]
) -> list[float]:
    """Return the mean of values over the inputs that are kept, for each rejected fraction.

    Parameters
    ----------
    values : Tensor
        One of each input, (N,).
    uncertainty : Tensor
        The highest are rejected first, (N,). Inputs of equal uncertainty each count with their
        mean, so that the order of the inputs does not matter.
    rejected : sequence of float
        Fractions in [0, 1); at least one input is always kept.
    """
    _, tie, sizes = uncertainty.cpu().unique(return_inverse=True, return_counts=True)
    of_tie = torch.bincount(tie, values.cpu().double()) / sizes
    sums = of_tie.repeat_interleave(sizes).cumsum(0)
    kept = [max(1, round(len(values) * (1 - fraction))) for fraction in rejected]
    return [float(sums[count - 1] / count) for count in kept]


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


TEMPERATURES = {f"nll-at-{2 ** (k / 4):.3g}": 2 ** (k / 4) for k in range(-8, 13)}
"""Name of a client's NLL at each temperature, and the temperature: 1/4 to 8."""

KNOWN = dict.fromkeys(TEMPERATURES, NLL_RANGE)
"""These scores, each with its least and its largest value."""


def nll_at_temperatures(prediction: Prediction, labels: Tensor) -> dict[str, float]:
    """Return the mean NLL at every temperature, in nats, by its name."""
    return {
        name: evaluate(prediction.tempered(temperature).probs, labels)["nll"]
        for name, temperature in TEMPERATURES.items()
    }


def fitted_temperature(clients: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the temperature T of the least mean NLL over the clients' examples; None without any.

    Near the best of the temperatures the NLL is interpolated by a parabola in log T, through it and
    its neighbours.

    Parameters
    ----------
    clients
        Scores by name, with ``num-examples``; those without `TEMPERATURES` do not count.
    """
    nll = _nll(clients)
    if nll is None:
        return None
    logs = [math.log(temperature) for temperature in TEMPERATURES.values()]
    best = min(range(len(nll)), key=nll.__getitem__)
    if best in (0, len(nll) - 1):
        return math.exp(logs[best])
    before, here, after = nll[best - 1 : best + 2]
    bend = before - 2 * here + after
    step = 0.5 * (before - after) / bend if bend > 0 else 0.0
    return math.exp(logs[best] + step * (logs[best + 1] - logs[best]))


def end_of_temperatures(temperature: float) -> str:
    """Return a line on a temperature at an end of the `TEMPERATURES`; "" for one between."""
    for end, called in ((min, "least"), (max, "largest")):
        if math.isclose(temperature, end(TEMPERATURES.values())):
            said = f"The calibration temperature {temperature:g} is the {called} that is tried"
            return f"{said}: the best one may lie beyond"
    return ""


def least_nll(clients: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the mean NLL in nats at the best of the `TEMPERATURES`; None without any client."""
    nll = _nll(clients)
    return None if nll is None else min(nll)


def _nll(clients: Sequence[Mapping[str, Any]]) -> list[float] | None:
    """Return the mean NLL over the clients' examples at each temperature; None without any."""
    told = [client for client in clients if client.keys() >= TEMPERATURES.keys()]
    examples = sum(client["num-examples"] for client in told)
    if not examples:
        return None
    return [sum(c["num-examples"] * c[name] for c in told) / examples for name in TEMPERATURES]


ROUNDING = 1e-9
"""Amount by which a threshold's specificity may fall short of the chosen one, by rounding."""


@dataclass(frozen=True, eq=False)
class Roc:
    """Counts at each threshold: a row is predicted positive if its score is at or above it.

    The first threshold lies above all scores; then come the different scores, the highest first.
    Rows with one score thus change sides together.

    Attributes
    ----------
    true_positives, false_positives : ndarray
        Positive and negative rows that are predicted positive, (T + 1,) int64, rising from 0 to
        all.
    """

    true_positives: np.ndarray
    false_positives: np.ndarray

    @classmethod
    def of(cls, scores: Tensor, positive: Tensor) -> Roc:
        """Return the curve of scores (N,), finite, for rows that are positive or not, (N,) bool.

        Raises
        ------
        ValueError
            If a score is not finite, or there is not one for each row.
        """
        values, truth = scores.cpu().double().numpy(), positive.cpu().numpy().astype(bool)
        if values.ndim != 1 or values.shape != truth.shape or not np.isfinite(values).all():
            raise ValueError(f"one finite score a row; got {values.shape} and {truth.shape}")
        order = np.argsort(-values, kind="stable")
        last = np.flatnonzero(np.diff(values[order], append=-np.inf))
        counts = (np.cumsum(part[order])[last] for part in (truth, ~truth))
        return cls(*(np.concatenate([[0], count]).astype(np.int64) for count in counts))

    @property
    def defined(self) -> bool:
        """True if there are positive and negative rows; else there is no curve and no score."""
        return bool(self.true_positives[-1] and self.false_positives[-1])

    @property
    def auroc(self) -> float:
        """P(score of a positive row > that of a negative one), ties counted half; or NaN."""
        if not self.defined:
            return math.nan
        tp, fp = self.true_positives, self.false_positives
        area = float((np.diff(fp) * (tp[1:] + tp[:-1])).sum()) / 2
        return area / (float(tp[-1]) * float(fp[-1]))

    def sensitivity(self, specificity: float) -> float:
        """Return the greatest sensitivity of the thresholds with at least a specificity; or NaN.

        It is the maximum over t of #{positive, score ≥ t} / #positive, subject to
        #{negative, score < t} ≥ specificity · #negative. Nothing is interpolated: a threshold
        attains the result on these rows. The threshold above all scores has specificity 1. So the
        result is 0 if all others have too low a specificity.

        Raises
        ------
        SettingError
            If the specificity is not a fraction from 0 to 1.
        """
        if not 0 <= specificity <= 1:
            raise SettingError("specificity", specificity, "a fraction from 0 to 1")
        if not self.defined:
            return math.nan
        negatives = self.false_positives[-1]
        spared = negatives - self.false_positives
        fits = spared >= (specificity - ROUNDING) * negatives
        return float(self.true_positives[fits].max() / self.true_positives[-1])
