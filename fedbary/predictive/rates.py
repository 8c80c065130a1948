"""The interval of a rate."""

from __future__ import annotations

from scipy.special import betaincinv

CONFIDENCE = 0.95
"""Confidence of the intervals."""


def interval(hits: int, count: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the Clopper-Pearson interval of a rate, from the numbers of hits and of trials."""
    tail = (1 - confidence) / 2
    low = float(betaincinv(hits, count - hits + 1, tail)) if hits else 0.0
    high = float(betaincinv(hits + 1, count - hits, 1 - tail)) if hits < count else 1.0
    return low, high
