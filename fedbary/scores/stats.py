"""Comparison of two methods over paired scores."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

DRAWS = 50_000
"""Draws from the posterior: probabilities are then good to ± 0.005 (two standard errors)."""


@dataclass(frozen=True, eq=False)
class SignedRank:
    """Result of the Bayesian signed-rank test for a first and a second method.

    Attributes
    ----------
    first, equal, second : float
        Posterior probabilities that the first method is better, that both are practically equal,
        and that the second is better; they sum to 1.
    rope : float
        Half-width of the region of practical equivalence, in the unit of the scores.
    pairs : int
        Pairs of scores compared.
    sample : ndarray
        The draws behind the probabilities, (50 000, 3): the mass of each of the three regions in
        the order first, equal, second; each row sums to 1.
    """

    first: float
    equal: float
    second: float
    rope: float
    pairs: int
    sample: np.ndarray


def signed_rank(
    first: Sequence[float], second: Sequence[float], lower_is_better: bool, seed: int = 0
) -> SignedRank:
    """Compare two methods by the Bayesian signed-rank test with a region of equivalence (ROPE).

    Let z_0 = 0, z_i the advantage of the first method in pair i, and u ~ Dirichlet(½, 1, ..., 1).
    The masses are

        first better: Σ_ij u_i u_j 1[z_i + z_j > 2 ROPE],
        second better: Σ_ij u_i u_j 1[z_i + z_j < −2 ROPE],

    and the rest is "equal". A sum exactly on the border counts half on each side. The probability
    of each is the share of draws in which it is largest.

    The ROPE is the 25th percentile of |z_i| (BA-BFL, section IV). That is 0 if a quarter of the
    pairs or more are ties; then the ROPE is the smallest |z_i| above 0. If all pairs are ties, the
    methods are equal with probability 1. This ROPE has no absolute scale: methods that differ by
    the same amount in every pair count as equal, however large the amount.

    Parameters
    ----------
    first, second : sequence of float
        Scores of the two methods, (N,), paired: the same data set, seed and so on at each place.
    lower_is_better : bool
        True for losses and errors, False for accuracies.
    seed : int
        Seed of the draws, 0 to 2³² − 1; no global random state is read or changed.

    Returns
    -------
    SignedRank
        Exchanging the methods exchanges its ``first`` and ``second``, draw by draw.

    Raises
    ------
    ValueError
        The lengths differ, there is no pair, or a score is not finite.

    References
    ----------
    Benavoli, Corani, Demšar, Zaffalon, Time for a Change: a Tutorial for Comparing Multiple
    Classifiers Through Bayesian Analysis, JMLR 2017. The draws are those of their library baycomp
    at the same seed, to rounding.
    """
    advantage = _advantage(first, second, lower_is_better)
    size = np.abs(advantage)
    if not size.any():
        certain = np.tile([0.0, 1.0, 0.0], (DRAWS, 1))
        return SignedRank(0.0, 1.0, 0.0, 0.0, len(size), certain)
    rope = float(np.percentile(size, 25)) or float(size[size > 0].min())

    z = np.concatenate([[0.0], advantage])
    weights = _weights(len(size), seed)
    sums = np.add.outer(z, z)
    better, worse = (
        np.einsum("di,di->d", weights @ np.heaviside(side - 2 * rope, 0.5), weights)
        for side in (sums, -sums)
    )
    sample = np.stack([better, 1 - (better + worse), worse], axis=1)
    shares = np.bincount(sample.argmax(axis=1), minlength=3) / DRAWS
    first_better, equal, second_better = map(float, shares)
    return SignedRank(first_better, equal, second_better, rope, len(size), sample)


@lru_cache(maxsize=4)
def _weights(pairs: int, seed: int) -> np.ndarray:
    """Return the draws of u, (DRAWS, 1 + pairs); a report's comparisons share them."""
    return np.random.RandomState(seed).dirichlet([0.5, *np.ones(pairs)], DRAWS)


SAME = 1e-9
"""Spread of differences, as a fraction of their mean, up to which they are equal."""


@dataclass(frozen=True)
class Paired:
    """The mean of first − second over pairs, and two tests that it is 0.

    Attributes
    ----------
    mean, low, high : float
        The mean difference, in the unit of the scores, and its 95 % interval by Student's t.
    t_test, wilcoxon : float
        Two-sided p-values of the paired t-test and of Wilcoxon's signed-rank test. The latter is
        never below 2^(1 − N) with N pairs.
    pairs : int
        Number of pairs. With one pair there is neither an interval nor a test: they are NaN.
        Equal differences, such as one row more in each of three pairs, do not tell their spread:
        interval, t-test and least difference are NaN.
    least : float
        The least difference that so many pairs with such a spread show: the t-test has p < 0.05 in
        80 % of repetitions, (t₀.₉₇₅ + t₀.₈) s/√N.
    """

    mean: float
    low: float
    high: float
    t_test: float
    wilcoxon: float
    pairs: int
    least: float


def paired(first: Sequence[float], second: Sequence[float]) -> Paired:
    """Compare two methods by the paired t-test and Wilcoxon's signed-rank test.

    The interval is mean ± t₀.₉₇₅(N − 1) s/√N, with s the standard deviation of the differences.
    Both tests assume independent pairs: pass one pair for each seed.

    Parameters
    ----------
    first, second : sequence of float
        Scores of the two methods, (N,), paired.

    Raises
    ------
    ValueError
        The lengths differ, there is no pair, or a score is not finite.
    """
    from scipy import stats

    difference = _advantage(first, second, lower_is_better=False)
    mean, pairs = float(difference.mean()), len(difference)
    if pairs == 1:
        return Paired(mean, math.nan, math.nan, math.nan, math.nan, pairs, math.nan)
    wilcoxon = float(stats.wilcoxon(difference).pvalue) if difference.any() else 1.0
    error = float(difference.std(ddof=1)) / math.sqrt(pairs)
    if error <= SAME * abs(mean):
        error = math.nan if mean else 0.0
    p_value = float(2 * stats.t.sf(abs(mean) / error, pairs - 1)) if mean else 1.0
    two_sided, powered = stats.t.ppf([0.975, 0.8], pairs - 1) * error
    ends = mean - float(two_sided), mean + float(two_sided)
    return Paired(mean, *ends, p_value, wilcoxon, pairs, float(two_sided + powered))


def corrected(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number by Holm's method; NaN stays and is not counted.

    In ascending order p_(i) becomes the largest of (N − j + 1) p_(j) over j ≤ i, at most 1.
    """
    order = sorted((p, i) for i, p in enumerate(p_values) if p == p)
    found, least = [float("nan")] * len(p_values), 0.0
    for rank, (p, i) in enumerate(order):
        least = max(least, min(1.0, (len(order) - rank) * p))
        found[i] = least
    return found


def _advantage(
    first: Sequence[float], second: Sequence[float], lower_is_better: bool
) -> np.ndarray:
    """Return the advantage of the first method in each pair."""
    a, b = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    if a.ndim != 1 or a.shape != b.shape or a.size == 0:
        raise ValueError(f"one score of each method per pair; got {a.shape} and {b.shape}")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise ValueError("scores must be finite")
    return b - a if lower_is_better else a - b
