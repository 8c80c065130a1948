"""The ROC curve of a score: true and false positives of each threshold, ties included."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from fedbary.errors import SettingError

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
