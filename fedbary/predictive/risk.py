"""The largest uncertainty at which predictions are kept, so that kept ones are rarely wrong.

The method is "learn then test". Each bin of the uncertainty is a threshold. Its null hypothesis is
that more than a fraction r of the predictions up to it are wrong. With e wrong ones among m kept
held-out examples the p-value is P(Binomial(m, r) ≤ e). Tests start from each of `STARTS` fixed
thresholds and go up, bin by bin, at level α/`STARTS`, until one does not reject. With probability 1
− α no threshold that passed has an error above r.

References
----------
Angelopoulos, Bates, Candès, Jordan and Lei, Learn then Test: Calibrating Predictive Algorithms to
Achieve Risk Control, Annals of Applied Statistics 2025, section 4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import bdtr
from torch import Tensor

from fedbary.errors import SettingError
from fedbary.predictive import Prediction
from fedbary.predictive.conformal import BINS, LIMIT, PER_UNIT, bins_of, counted

STARTS = 8
"""Number of thresholds that tests start from: log-odds −10, −8, …, 4."""

_FIRST = [PER_UNIT * (LIMIT - 10 + 2 * k) for k in range(STARTS)]

MOST_TIMES = 10_000
"""Largest multiple of the number of examples that is tried in the search for the number needed."""


@dataclass(frozen=True)
class Certain:
    """The largest uncertainty that passes, and the examples below it.

    Parameters
    ----------
    number : int
        Its bin, see `uncertainty_bins`; −1 if none passes.
    examples, kept, wrong : int
        Numbers of held-out examples, of kept ones, and of wrong ones among these.
    needed : int
        Number of held-out examples like these that would suffice; 0 if no number does.
    """

    number: int
    examples: int
    kept: int
    wrong: int
    needed: int


def uncertainty_bins(prediction: Prediction) -> Tensor:
    """Return the bin of each prediction's entropy, as a fraction of the largest, (N,) int64."""
    part = prediction.entropy.double() / math.log(prediction.probs.shape[-1])
    part = part.clamp(0, 1)
    return bins_of(part, 1 - part)


def risk_histogram(prediction: Prediction, y: Tensor) -> Tensor:
    """Return the numbers of right and of wrong predictions in each bin, (2, BINS) int64."""
    wrong = (prediction.probs.argmax(-1) != y.to(prediction.probs.device)).long()
    return counted(uncertainty_bins(prediction), wrong, 2)


def certain(counts: Tensor, error_rate: float, confidence: float) -> Certain:
    """Return the largest uncertainty up to which at most a fraction is wrong, with confidence.

    Parameters
    ----------
    counts
        Counts of held-out examples, from `risk_histogram`.
    error_rate
        The fraction r, above 0 and below 1.
    confidence
        The probability 1 − α that it holds, above 0 and below 1.

    Raises
    ------
    SettingError
        If a number is out of its range.
    """
    for name, value in (("error_rate", error_rate), ("confidence", confidence)):
        if not 0 < value < 1:
            raise SettingError(name, value, "above 0 and below 1")
    kept, wrong = counts.sum(0).cumsum(0).numpy(), counts[1].cumsum(0).numpy()
    alpha = (1 - confidence) / STARTS
    passes = (bdtr(wrong, kept, error_rate) <= alpha) & (kept > 0)
    number = -1
    for first in _FIRST:
        if passes[first]:
            failed = np.flatnonzero(~passes[first:])
            number = max(number, first + int(failed[0]) - 1 if len(failed) else BINS - 1)
    examples = int(kept[-1])
    if number >= 0:
        return Certain(number, examples, int(kept[number]), int(wrong[number]), examples)
    return Certain(-1, examples, 0, 0, _needed(kept, wrong, error_rate, alpha))


def _needed(kept: np.ndarray, wrong: np.ndarray, error_rate: float, alpha: float) -> int:
    """Return the number of examples like these that would pass at a start; 0 if none does."""
    times = np.geomspace(1, MOST_TIMES, 200)[:, None]
    more, failures = np.floor(kept[_FIRST] * times), np.ceil(wrong[_FIRST] * times)
    passes = (bdtr(failures, more.astype(int), error_rate) <= alpha) & (more > 0)
    enough = np.flatnonzero(passes.any(1))
    return math.ceil(float(times[enough[0], 0]) * int(kept[-1])) if len(enough) else 0
