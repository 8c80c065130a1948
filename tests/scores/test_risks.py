"""Risks of an event: calibration, thresholds and net benefit by their definitions; intervals."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
from scipy.special import expit

from fedbary.scores.binary import (
    at_alerts,
    at_sensitivity,
    calibration_line,
    cut_at,
    deciles,
    net_benefit,
)
from fedbary.scores.intervals import bootstrap

RNG = np.random.default_rng(0)


@st.composite
def risks(draw, least=1):
    """Risks on a grid, so that some are equal, and events of both kinds."""
    count = draw(st.integers(2, 60))
    risk = np.array(draw(st.lists(st.integers(0, 20), min_size=count, max_size=count))) / 20
    event = np.array(draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    event[:2] = True, False
    return risk, event


def test_outcomes_drawn_from_the_risks_have_slope_1_and_intercept_0():
    """Mean over draws; the intervals hold both at their rate."""
    found = []
    for _ in range(200):
        risk = expit(RNG.normal(-1, 1.5, 500))
        found.append(calibration_line(risk, RNG.random(500) < risk))
    for estimates, truth in zip(np.array(found).transpose(1, 2, 0), (1, 0), strict=True):
        value, low, high = estimates
        assert value.mean() == pytest.approx(truth, abs=0.03)
        assert np.mean((low < truth) & (truth < high)) > 0.9


@pytest.mark.parametrize(("slope", "shift"), [(0.5, 0.0), (2.0, 0.7)])
def test_the_slope_is_that_by_which_the_log_odds_were_stretched(slope, shift):
    odds = RNG.normal(0, 1.5, 200_000)
    event = RNG.random(len(odds)) < expit(slope * odds)
    assert calibration_line(expit(odds), event)[0][0] == pytest.approx(slope, rel=0.02)
    event = RNG.random(len(odds)) < expit(odds + shift)
    assert calibration_line(expit(odds), event)[1][0] == pytest.approx(shift, abs=0.03)


def test_what_rows_do_not_determine_has_no_number():
    (slope, *_), (intercept, *_) = calibration_line(np.full(20, 0.3), np.arange(20) < 6)
    assert math.isnan(slope) and intercept == pytest.approx(0, abs=1e-9)
    assert math.isnan(calibration_line(np.linspace(0.1, 0.9, 20), np.arange(20) >= 10)[0][0])


@given(risks())
def test_tenths_hold_every_row_once_and_equal_risks_together(both):
    risk, event = both
    bins = deciles(risk, event)
    assert bins.rows.sum() == len(risk) and bins.events.sum() == event.sum()
    assert len(bins.rows) <= min(10, len(set(risk))) and (np.diff(bins.risk) > 0).all()
    assert (bins.rows @ bins.risk) == pytest.approx(risk.sum())
    assert ((bins.low <= bins.observed) & (bins.observed <= bins.high)).all()


@given(risks(), st.floats(0.01, 1))
def test_a_threshold_finds_the_fraction_asked_for_and_a_higher_one_does_not(both, least):
    risk, event = both
    cut = at_sensitivity(risk, event, least)
    assert cut.hits >= least * event.sum() - 1e-6
    above = risk[risk > cut.threshold]
    if len(above):
        assert cut_at(risk, event, above.min()).hits < least * event.sum()


@given(risks(), st.floats(0.01, 1))
def test_alerts_stay_within_the_rate_and_a_lower_threshold_exceeds_it(both, most):
    risk, event = both
    cut = at_alerts(risk, event, most)
    assert cut.alerts <= most + 1e-9
    if len(below := risk[risk < cut.threshold]):
        assert cut_at(risk, event, below.max()).alerts > most
    for _, hits, count in cut.rates():
        assert 0 <= hits <= count <= len(risk)


@given(risks(), st.floats(0.01, 0.95))
def test_the_net_benefit_of_acting_on_all_has_its_closed_form_and_the_best_is_the_share(both, t):
    risk, event = both
    share = event.mean()
    everyone = net_benefit(np.ones(len(risk)), event, np.array([t]))
    assert everyone == pytest.approx(share - (1 - share) * t / (1 - t))
    assert net_benefit(event.astype(float), event, np.array([t])) == pytest.approx(share)
    assert net_benefit(np.zeros(len(risk)), event, np.array([t])) == 0
    assert net_benefit(risk, event, np.array([t])) <= share + 1e-12


@pytest.mark.parametrize("asked", [0.0, -0.1, 1.1])
def test_a_fraction_out_of_range_is_refused(asked):
    both = np.array([0.1, 0.2]), np.array([True, False])
    refused("sensitivity", at_sensitivity, *both, asked)
    refused("alerts", at_alerts, *both, asked)


def covers(values, groups, truth, seed):
    low, high = bootstrap(
        lambda rows: {"mean": float(values[rows].mean())}, groups, draws=200, seed=seed
    )["mean"]
    return low <= truth <= high


def test_intervals_hold_the_mean_at_their_rate_with_groups_and_without():
    """Rows of a group are equal: as if each were one row."""
    alone, grouped = 0, 0
    for seed in range(200):
        values = torch.from_numpy(RNG.normal(size=40))
        alone += covers(values, torch.arange(40), 0.0, seed)
        grouped += covers(values.repeat(3), torch.arange(40).repeat(3), 0.0, seed)
    assert 0.88 < alone / 200 <= 1 and 0.88 < grouped / 200 <= 1


def test_an_interval_is_free_of_the_excess_that_drawing_adds():
    """|mean| of rows with mean 0 is larger on drawn rows; few rows have no interval."""
    values = torch.linspace(-1, 1, 101).double()
    judge = lambda rows: {"gap": abs(float(values[rows].mean()))}  # noqa: E731
    low, high = bootstrap(judge, torch.arange(101))["gap"]
    assert low == pytest.approx(0, abs=1e-6) and 0 < high < 0.15
    assert all(map(math.isnan, bootstrap(judge, torch.arange(9))["gap"]))


@given(risks())
def test_an_interval_encloses_its_score_and_a_score_that_cannot_vary_has_none(held):
    """Of a rare hit most draws have the score 0: shifted quantiles then lie beyond it."""
    hits = torch.from_numpy(held[1])
    worst = lambda rows: {"hit": float(hits[rows].double().mean() > 0.9)}  # noqa: E731
    low, high = bootstrap(worst, torch.arange(len(hits)), draws=50)["hit"]
    assert math.isnan(low) or low <= worst(torch.arange(len(hits)))["hit"] <= high and low < high
