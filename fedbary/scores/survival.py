"""Scores of predicted hazards on times to an event, some of them cut short.

**C.** Two rows are a pair if the earlier time is an event. A row that is cut short at the time of
an event lies after it, and two events at one time are no pair. A pair is right if the earlier event
has the larger hazard; equal hazards count half. With a_i right ones of the b_i pairs of row i,

    C = Σ a_i / Σ b_i,    Var C = 4 Σ (a_i − C b_i)² / (Σ b_i)²,

the infinitesimal jackknife. All of it is sums, so that rows of several sites make pairs within each
site alone.

**Observed risk.** Of rows at hand it is Kaplan and Meier's, with the interval of log(−log S) by
Greenwood. Of sums it is that of O events where E are expected: with H = −log(1 − predicted risk) it
is 1 − exp(−H O/E), and Poisson's exact interval of O gives its ends.

References: Harrell et al., Evaluating the yield of medical tests, 1982; Therneau and Atkinson, The
concordance statistic, 2024; Kalbfleisch and Prentice, The statistical analysis of failure time
data, 2002; Crowson, Atkinson and Therneau, Assessing calibration of prognostic risk scores, 2016.
"""

from __future__ import annotations

import numpy as np
from scipy.special import gammaincinv, ndtri

from fedbary.scores.binary import Bins, Estimate

_TWO_SIDED = float(ndtri(0.975))


def pairs(hazard: np.ndarray, time: np.ndarray, event: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a and b, (N,) each: right pairs and pairs that each row is in.

    It takes O(N log² N): pairs of places differ in a highest bit, and a sort tells each bit's.

    Parameters
    ----------
    hazard, time, event
        Predicted hazards of any scale, times, and 1 for an event, else 0, (N,) each.
    """
    event = event.astype(bool)
    order = np.lexsort([~event, time])
    new = (np.diff(time[order]) > 0) | (np.diff(event[order].astype(int)) != 0)
    place = np.empty(len(time), dtype=np.int64)
    place[order] = np.concatenate([[0], new.cumsum()])[: len(time)]
    values, rank = np.unique(hazard, return_inverse=True)
    right, every, width = np.zeros(len(time)), np.zeros(len(time)), len(values)
    for bit in range(int(place.max(initial=0)).bit_length()):
        block, late = place >> (bit + 1), (place >> bit) & 1 == 1
        key = block * width + rank
        early = event & ~late
        for here, there, later in ((early, late, True), (late, early, False)):
            sorted_ = np.sort(key[there])
            first, low, high, end = (
                np.searchsorted(sorted_, edge)
                for edge in (
                    block[here] * width, key[here], key[here] + 1, (block[here] + 1) * width,
                )
            )  # fmt: skip
            wins = low - first if later else end - high
            right[here] += wins + (high - low) / 2
            every[here] += end - first
    return right, every


def pair_sums(right: np.ndarray, every: np.ndarray) -> np.ndarray:
    """Return Σ a/2, Σ b/2, Σ a², Σ a b and Σ b², (5,), of which those of several sites add up."""
    sums = right.sum() / 2, every.sum() / 2, right @ right, right @ every, every @ every
    return np.array(sums, dtype=float)


def concordance(sums: np.ndarray) -> Estimate:
    """Return C and its 95 % interval from `pair_sums`; NaN without pairs."""
    right, every, aa, ab, bb = sums.tolist()
    if not every:
        return (float("nan"),) * 3
    c = right / every
    wide = _TWO_SIDED * max(0.0, aa - 2 * c * ab + c * c * bb) ** 0.5 / every
    return c, max(0.0, c - wide), min(1.0, c + wide)


def kaplan_meier(time: np.ndarray, event: np.ndarray, at: float) -> Estimate:
    """Return the survival of rows (N,) until a time, and its 95 % interval.

    It is not known, NaN, after the last time, unless that is an event of the last row. The interval
    is not known where all rows survive, or none.
    """
    times, here = np.unique(time, return_inverse=True)
    left = np.bincount(here)[::-1].cumsum()[::-1]
    events = np.bincount(here, event)
    before = (times <= at) & (events > 0)
    d, n = events[before], left[before]
    survival = float(np.prod(1 - d / n))
    if at > times[-1] and survival > 0:
        return (float("nan"),) * 3
    if survival in (0.0, 1.0):
        return survival, float("nan"), float("nan")
    wide = _TWO_SIDED * np.sqrt((d / (n * (n - d))).sum()) / abs(np.log(survival))
    low, high = (survival ** np.exp(sign * wide) for sign in (1, -1))
    return survival, float(low), float(high)


def calibration(risk: np.ndarray, time: np.ndarray, event: np.ndarray, at: float) -> Bins:
    """Return predicted against Kaplan-Meier risk until a time, by tenths of the predicted risk.

    `events` are those until the time.
    """
    edges = np.quantile(risk, np.arange(1, 10) / 10)
    _, part = np.unique(np.searchsorted(edges, risk, side="left"), return_inverse=True)
    rows, until = np.bincount(part), np.bincount(part, event * (time <= at)).astype(np.int64)
    held = [kaplan_meier(time[part == k], event[part == k], at) for k in range(len(rows))]
    observed, high, low = 1 - np.array(held).T
    return Bins(np.bincount(part, risk) / rows, observed, low, high, rows, until)


def calibration_of_sums(cells: np.ndarray) -> Bins:
    """Return predicted against observed risk of groups of rows, from sums.

    Parameters
    ----------
    cells
        Of each group its rows, its sum of predicted risks, its events and how many were expected
        while its rows were observed, (4, groups). Groups without rows are left out.
    """
    rows, risk, events, expected = cells[:, cells[0] > 0]
    mean = np.minimum(risk / rows, 1 - 1e-12)
    low = np.where(events > 0, gammaincinv(np.maximum(events, 1), 0.025), 0.0)
    scale = np.log1p(-mean) / np.maximum(expected, 1e-300)
    observed, least, most = (
        -np.expm1(scale * each) for each in (events, low, gammaincinv(events + 1, 0.975))
    )
    return Bins(mean, observed, least, most, rows.astype(np.int64), events.astype(np.int64))
