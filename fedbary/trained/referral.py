"""Referral: uncertain cases go to a person, so that the kept predictions are rarely wrong."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv
from torch import Tensor

from fedbary.errors import SettingError
from fedbary.predictive import Prediction

CONFIDENCE = 0.95
"""Confidence of the upper bound beside an error rate."""


@dataclass(frozen=True)
class Referral:
    """A threshold on the total uncertainty, and its effect on the examples it was chosen on.

    Parameters
    ----------
    threshold : float
        In nats; cases above it go to a person. −1: all do.
    kept : float
        Fraction of the examples at or below the threshold.
    error : float
        Fraction of the kept examples that are wrong; NaN if none is kept.
    bound : float
        The upper end of the one-sided 95 % Clopper-Pearson interval of that error.
    """

    threshold: float
    kept: float
    error: float
    bound: float

    def to_person(self, prediction: Prediction) -> np.ndarray:
        """Return the mask of the predictions that go to a person, (N,) bool."""
        return (prediction.entropy.double().cpu().numpy() > self.threshold).astype(bool)


def referral(prediction: Prediction, y: Tensor, error_rate: float) -> Referral:
    """Choose the largest threshold whose kept predictions have at most this error rate.

    Examples are sorted by the entropy of their prediction. The threshold is the largest one whose
    kept examples have an error of at most `error_rate`. The examples must not have been trained on.

    Parameters
    ----------
    prediction
        Prediction of held-out examples.
    y
        Their classes (N,).
    error_rate
        Largest fraction of wrong predictions among the kept ones, from 0 to below 1.

    Raises
    ------
    SettingError
        If the error rate is out of its range, or examples have several classes.
    """
    if not 0 <= error_rate < 1:
        raise SettingError("error_rate", error_rate, "from 0 to below 1")
    if prediction.probs.ndim > 2:
        why = "none: an example of this task has several classes, right and wrong ones"
        raise SettingError("error_rate", error_rate, why)
    entropy = prediction.entropy.double().cpu().numpy()
    wrong = (prediction.probs.argmax(1).cpu() != y.cpu()).numpy()
    order = np.argsort(entropy, kind="stable")
    errors = np.cumsum(wrong[order])
    counts = np.arange(1, len(order) + 1)
    last_of_ties = np.append(np.diff(entropy[order]) > 0, True)
    allowed = np.flatnonzero(last_of_ties & (errors <= error_rate * counts))
    if not len(allowed):
        return Referral(-1.0, 0.0, float("nan"), 1.0)
    place = allowed[-1]
    count, failed = int(counts[place]), int(errors[place])
    bound = 1.0 if failed == count else float(betaincinv(failed + 1, count - failed, CONFIDENCE))
    return Referral(float(entropy[order][place]), count / len(order), failed / count, bound)
