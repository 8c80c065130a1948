"""Over many federations, intervals hold the truth as often as the page on coefficients says."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import expit

from fedbary.tasks import Contrasts
from fedbary.trained.coefficients import Factors, Site, tabulated

PRIOR, SLOPES, LEVEL = 0.01, np.array([0.6, -0.4, 0.2]), -0.5
UNKNOWN = torch.full((1, 4), torch.nan, dtype=torch.float64)
PLAIN = Contrasts(
    ("a", "b", "c", "intercept"),
    ("per 1", "per 1", "per 1", ""),
    ("y",),
    torch.eye(4, dtype=torch.float64),
    torch.ones(1, 1, dtype=torch.float64),
    "odds",
    torch.zeros_like(UNKNOWN),
    UNKNOWN,
    UNKNOWN,
)


def expanded(x, y, at):
    """Return the curvature and the slope of the negative log-likelihood."""
    p = expit(x @ at)
    return (x * (p * (1 - p))[:, None]).T @ x, x.T @ (p - y)


def mode(x, y):
    """Return the mode under the prior, by Newton's method."""
    at = np.zeros(x.shape[1])
    for _ in range(30):
        curvature, slope = expanded(x, y, at)
        at = at - np.linalg.solve(curvature + PRIOR * np.eye(4), slope + PRIOR * at)
    return at


def federation(draw, sites, rows, of_levels, of_slopes):
    """Return the factors of sites whose level, or first slope, has a standard deviation."""
    held = []
    for _ in range(sites):
        x = draw.standard_normal((draw.integers(*rows), 3))
        x = np.c_[x + 0.6 * draw.standard_normal((len(x), 1)), np.ones(len(x))]
        own = np.append(SLOPES, LEVEL + of_levels * draw.standard_normal())
        own[0] += of_slopes * draw.standard_normal()
        held.append((x, (draw.random(len(x)) < expit(x @ own)).astype(float)))
    at, factors = mode(*map(np.concatenate, zip(*held, strict=True))), {}
    for number, (x, y) in enumerate(held):
        alone = mode(x, y)
        curvature, slope = expanded(x, y, alone)
        own = curvature, slope + curvature @ (at - alone)
        factors[f"site {number}"] = Site(len(y), *expanded(x, y, at), alone=own)
    return Factors(PLAIN, np.eye(4), at, PRIOR, factors)


@pytest.mark.parametrize(
    ("sites", "rows", "of_levels", "of_slopes"),
    [(5, (100, 400), 0, 0), (20, (20, 60), 1, 0), (6, (100, 400), 0, 0.4), (20, (20, 60), 0, 0.4)],
)
def test_intervals_hold_the_truth_where_the_table_warns(sites, rows, of_levels, of_slopes):
    draw, pooled, random, warned, count = np.random.default_rng(7), 0, 0, 0, 60
    for _ in range(count):
        factors = federation(draw, sites, rows, of_levels, of_slopes)
        line = tabulated(factors, 0.95).iloc[0]
        pooled += line["lower 95 %"] < SLOPES[0] < line["upper 95 %"]
        random += line["HK lower 95 %"] < SLOPES[0] < line["HK upper 95 %"]
        warned += line["p differ"] < 0.05 or factors.score()[0] < 0.05
    assert random >= 0.9 * count
    if of_levels or of_slopes:
        assert pooled < 0.9 * count and warned >= 0.8 * count
    else:
        assert pooled >= 0.9 * count and warned <= 0.2 * count


@pytest.mark.parametrize("sites", [2, 7])
def test_of_sites_that_tell_alike_the_score_test_is_cochran_s(sites):
    """Sites have multiples c_k of one precision P: Q = Σ t_k²/(c_k P_jj). Two may differ in c."""
    draw, units = np.random.default_rng(sites), ("per 1",) * 4
    root, sizes = draw.normal(size=(4, 4)), np.linspace(1, 3, sites) if sites == 2 else np.ones(7)
    precision, slopes = root @ root.T + np.eye(4), draw.normal(size=(sites, 4))
    slopes -= np.outer(sizes, slopes.sum(0) / sizes.sum())  # at the mode of all
    held = {str(k): Site(9, c * precision, slopes[k]) for k, c in enumerate(sizes)}
    factors = Factors(replace(PLAIN, units=units), np.eye(4), np.zeros(4), 0.0, held)
    q = (slopes**2 / np.outer(sizes, precision.diagonal())).sum(0)
    np.testing.assert_allclose(factors.p_differ, stats.chi2(sites - 1).sf(q), rtol=1e-9)
