"""Predicted risks of one event: calibration, thresholds, net benefit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, logit

from fedbary.errors import SettingError
from fedbary.predictive.conformal import interval
from fedbary.scores.intervals import TWO_SIDED

LEAST = 1e-6
"""The least risk, and the least 1 − risk, whose log-odds are taken."""


@dataclass(frozen=True, eq=False)
class Bins:
    """Predicted against observed risk, in groups of about as many rows each, by predicted risk.

    Attributes
    ----------
    risk, observed, low, high : ndarray
        Mean predicted risk, fraction of events, and its 95 % Clopper-Pearson interval, (bins,).
    rows, events : ndarray
        Rows and events of each group, (bins,) int64.
    """

    risk: np.ndarray
    observed: np.ndarray
    low: np.ndarray
    high: np.ndarray
    rows: np.ndarray
    events: np.ndarray


def deciles(risk: np.ndarray, event: np.ndarray, parts: int = 10) -> Bins:
    """Return the calibration of risks (N,) for events (N,) bool, by tenths of the risk.

    Rows of one risk stay together, so that there may be fewer groups than `parts`.
    """
    edges = np.quantile(risk, np.arange(1, parts) / parts)
    _, part = np.unique(np.searchsorted(edges, risk, side="left"), return_inverse=True)
    rows, events = np.bincount(part), np.bincount(part, event).astype(np.int64)
    low, high = np.array([interval(int(k), int(n)) for k, n in zip(events, rows, strict=True)]).T
    return Bins(np.bincount(part, risk) / rows, events / rows, low, high, rows, events)


Estimate = tuple[float, float, float]
"""A number, and the ends of its 95 % interval; NaN if the rows do not determine it."""


def calibration_line(risk: np.ndarray, event: np.ndarray) -> tuple[Estimate, Estimate]:
    """Return the calibration slope and intercept of risks (N,) for events (N,) bool.

    The slope is b in log-odds(event) = a + b log-odds(risk): 1 is right, below 1 the risks are too
    extreme. The intercept is a at b = 1, calibration in the large: 0 is right, below 0 the risks
    are too high. Both are fitted by maximum likelihood, with Wald's intervals.

    References
    ----------
    Van Calster et al., Calibration: the Achilles heel of predictive analytics, BMC Medicine 2019.
    """
    odds = logit(np.clip(risk.astype(float), LEAST, 1 - LEAST))
    ones = np.ones_like(odds)
    slope = _fitted(np.stack([ones, odds], 1), event, 0 * ones)
    return slope, _fitted(ones[:, None], event, odds)


def _fitted(x: np.ndarray, event: np.ndarray, offset: np.ndarray) -> Estimate:
    """Return the last coefficient of a logistic regression, by Newton's steps.

    It is NaN if the steps do not end: events and others are separated, or x is constant.
    """
    weights = np.zeros(x.shape[1])
    for _ in range(50):
        p = expit(offset + x @ weights)
        information = (x * (p * (1 - p))[:, None]).T @ x
        if np.linalg.cond(information) > 1e10:
            break
        step = np.linalg.solve(information, x.T @ (event - p))
        weights = weights + step
        if np.abs(step).max() < 1e-9:
            half = TWO_SIDED * math.sqrt(np.linalg.inv(information)[-1, -1])
            return float(weights[-1]), float(weights[-1] - half), float(weights[-1] + half)
    return math.nan, math.nan, math.nan


@dataclass(frozen=True)
class Cut:
    """A threshold: rows whose risk is at or above it are predicted to have the event.

    Attributes
    ----------
    threshold : float
        The risk.
    hits, alarms, missed, spared : int
        Rows with the event and without it that are at or above; with it and without it below.
    """

    threshold: float
    hits: int
    alarms: int
    missed: int
    spared: int

    @property
    def alerts(self) -> float:
        """Fraction of all rows that are at or above."""
        return (self.hits + self.alarms) / (self.hits + self.alarms + self.missed + self.spared)

    def rates(self) -> Iterator[tuple[str, int, int]]:
        """Yield sensitivity, specificity and both predictive values: name, successes, trials."""
        yield "sensitivity", self.hits, self.hits + self.missed
        yield "specificity", self.spared, self.spared + self.alarms
        yield "positive predictive value", self.hits, self.hits + self.alarms
        yield "negative predictive value", self.spared, self.spared + self.missed


def cut_at(risk: np.ndarray, event: np.ndarray, threshold: float) -> Cut:
    """Return what a threshold does on risks (N,) and events (N,) bool."""
    above = risk >= threshold
    counts = (above & event, above & ~event, ~above & event, ~above & ~event)
    return Cut(float(threshold), *(int(mask.sum()) for mask in counts))


def at_sensitivity(risk: np.ndarray, event: np.ndarray, least: float) -> Cut:
    """Return the highest threshold that finds at least a fraction of the events.

    Raises
    ------
    SettingError
        If the fraction is not above 0 and at most 1.
    """
    if not 0 < least <= 1:
        raise SettingError("--sensitivity", least, "above 0 and at most 1")
    known = np.sort(risk[event])[::-1]
    place = max(math.ceil(least * len(known) - 1e-9), 1) - 1 if len(known) else 0
    return cut_at(risk, event, known[place] if len(known) else math.inf)


def at_alerts(risk: np.ndarray, event: np.ndarray, most: float) -> Cut:
    """Return the lowest threshold that at most a fraction of all rows reach.

    It is infinite if more rows than that share the highest risk.

    Raises
    ------
    SettingError
        If the fraction is not above 0 and at most 1.
    """
    if not 0 < most <= 1:
        raise SettingError("--alerts", most, "above 0 and at most 1")
    known, counts = np.unique(risk, return_counts=True)
    reached = np.cumsum(counts[::-1])[::-1] <= most * len(risk) + 1e-9
    return cut_at(risk, event, known[reached].min() if reached.any() else math.inf)


def net_benefit(risk: np.ndarray, event: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Return the net benefit of treating at each threshold t: TP/N − FP/N · t/(1 − t).

    It is a fraction of the rows: true positives, less the false ones at the exchange rate that the
    threshold stands for. Treating all rows has π − (1 − π) t/(1 − t), π being the events' share.

    References
    ----------
    Vickers and Elkin, Decision Curve Analysis, Medical Decision Making 2006.
    """
    cuts = [cut_at(risk, event, t) for t in thresholds]
    gains = [c.hits - c.alarms * c.threshold / (1 - c.threshold) for c in cuts]
    return np.array(gains) / len(risk)
