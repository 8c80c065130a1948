"""Over many federations, intervals hold the truth as often as the page on coefficients says."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import expit

from fedbary.trained import coefficients
from fedbary.trained.coefficients import Coefficients, Factors, Site, tabulated
from findings.statistics import missing
from findings.statistics.coverage import PLAIN, SLOPES, federation


@pytest.mark.parametrize(
    ("sites", "rows", "of_levels", "of_slopes"),
    [(5, (100, 400), 0, 0), (20, (20, 60), 1, 0), (6, (100, 400), 0, 0.4), (20, (20, 60), 0, 0.4)],
)
def test_intervals_hold_the_truth_where_the_table_warns(sites, rows, of_levels, of_slopes):
    draw, pooled, random, warned, count = np.random.default_rng(7), 0, 0, 0, 60
    for _ in range(count):
        factors, *_ = federation(draw, sites, rows, of_levels, of_slopes, False)
        line = tabulated(factors, 0.95).iloc[0]
        pooled += line["lower 95 %"] < SLOPES[0] < line["upper 95 %"]
        random += line["HK lower 95 %"] < SLOPES[0] < line["HK upper 95 %"]
        warned += line["p differ"] < 0.05 or factors.score()[0] < 0.05
    assert random >= 0.9 * count
    if of_levels or of_slopes:
        assert pooled < 0.9 * count and warned >= 0.8 * count
    else:
        assert pooled >= 0.9 * count and warned <= 0.2 * count


def test_rows_without_an_empty_cell_give_intervals_that_hold_the_truth_and_means_do_not():
    """Four standard deviations of 100 tables below 95 %."""
    drop, mean, indicator = missing.rates(7, 100)
    assert min(drop["column"], drop["neighbour"]) > 86
    assert mean["neighbour"] < indicator["neighbour"] < 86


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


def test_the_forest_has_the_interval_of_sites_that_differ_whatever_a_columns_unit(monkeypatch):
    slopes = 5.0 * np.array([[1, 1, 0, 0], [-1, -1, 0, 0], [0, 0, 0, 0]])
    held = {str(k): Site(9, np.eye(4), slope) for k, slope in enumerate(slopes)}
    units = torch.tensor([1e-3, 1e3, 1e-3, 1e3]).double()
    told = replace(PLAIN, units=("per 1",) * 4, columns=torch.diag(units))
    factors = Factors(told, np.eye(4), np.zeros(4), 0.0, held, 9.0)
    monkeypatch.setattr(coefficients, "forest", lambda names, panels, *more: panels)
    (panel,) = Coefficients(tabulated(factors, 0.95), "", (), factors, 0.95).picture().values()
    monkeypatch.setattr(Factors, "score", lambda self: (1.0, ""))
    (each,) = Coefficients(tabulated(factors, 0.95), "", (), factors, 0.95).picture().values()
    assert np.isfinite(panel.random).all()  # the score test of all terms
    assert np.isfinite(each.random).all(0).tolist() == [True, True, False, False]


def test_at_a_rare_level_estimates_of_sites_are_newton_steps_from_the_mode_of_all():
    """Of a 0/1 column a step is (O − E)/V at the level, less that without it."""
    draw, held, wanted = np.random.default_rng(5), {}, []
    at = np.array([0.4, -2.0])
    mean = expit(at[::-1].cumsum()[::-1])  # at the level, and without it
    for name in "abcde":
        rows = draw.integers(10, 40, 2)
        events, var = draw.binomial(rows, mean), rows * mean * (1 - mean)
        precision = np.array([[var[0], var[0]], [var[0], var.sum()]])
        slope = np.array([rows[0] * mean[0] - events[0], rows @ mean - events.sum()])
        own = 1e3 * np.eye(2), np.zeros(2)  # what the site found alone does not count
        held[name] = Site(rows.sum(), precision, slope, alone=own)
        level, without = (events - rows * mean) / var
        wanted.append([at[0] + level - without, np.sqrt((1 / var).sum())])
    told = replace(PLAIN, terms=("sex=f", "intercept"), units=("against m", ""),
                   columns=torch.eye(2).double(), offset=torch.zeros(1, 2).double())  # fmt: skip
    factors = Factors(told, np.eye(2), at, 0.0, held)
    np.testing.assert_allclose(factors.compared[:, :, 0], wanted, rtol=1e-9)


def test_the_mean_of_sites_is_that_of_all_rows_at_a_rare_level():
    """That of their own estimates is 1.8 deviations above: those without events weigh nothing."""
    draw, gaps = np.random.default_rng(7), []
    for _ in range(10):
        factors, *_ = federation(draw, 20, (50, 150), 0, 0, "rare")
        line = tabulated(factors, 0.95).iloc[0]
        gaps.append((line["random mean"] - line["estimate"]) / line["std"])
    assert abs(np.mean(gaps)) < 0.3
