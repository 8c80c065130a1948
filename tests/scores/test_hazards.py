"""C and calibration of predicted hazards are lifelines', and those of the definition."""

import numpy as np
import pytest
from lifelines import KaplanMeierFitter
from lifelines.utils import concordance_index
from scipy.special import gammainc

from fedbary.scores.survival import (
    calibration,
    calibration_of_sums,
    concordance,
    kaplan_meier,
    pair_sums,
    pairs,
)


def tied(seed):
    """Rows with ties of times, events and hazards."""
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(2, 60))
    time = rng.integers(1, rng.integers(3, 30), rows).astype(float)
    return rng.normal(size=rows).round(seed % 3), time, (rng.random(rows) < 0.6).astype(float)


@pytest.mark.parametrize("seed", range(40))
def test_pairs_are_those_of_the_definition_and_c_is_lifelines(seed):
    hazard, time, event = tied(seed)
    later = (time > time[:, None]) | ((time == time[:, None]) & (event == 0))
    pair = (event[:, None] == 1) & later
    right = pair * ((hazard[:, None] > hazard) + 0.5 * (hazard[:, None] == hazard))
    found = pairs(hazard, time, event)
    assert np.array_equal(found, [held.sum(0) + held.sum(1) for held in (right, pair)])
    c, low, high = concordance(pair_sums(*found))
    if pair.any():
        assert c == pytest.approx(concordance_index(time, -hazard, event))
        assert 0 <= low <= c <= high <= 1


@pytest.mark.parametrize("hazard", [[], [1.0]])
def test_rows_without_a_pair_have_no_c(hazard):
    held = np.array(hazard)
    assert np.isnan(concordance(pair_sums(*pairs(held, held + 1, held)))).all()


def test_c_s_interval_holds_the_truth_as_often_as_it_says():
    rng, covered, truth = np.random.default_rng(0), [], []
    for _ in range(400):
        hazard = rng.normal(size=100)
        time, end = rng.exponential(np.exp(-hazard)), rng.exponential(2.0, 100)
        sums = pair_sums(*pairs(hazard, np.minimum(time, end), time < end))
        truth.append(sums[:2])
        covered.append(concordance(sums))
    right, every = np.sum(truth, 0)
    _, low, high = np.transpose(covered)
    assert 0.92 <= ((low <= right / every) & (right / every <= high)).mean() <= 0.98


@pytest.mark.parametrize("seed", range(20))
def test_kaplan_and_meier_s_survival_and_interval_are_lifelines(seed):
    _, time, event = tied(seed)
    at = np.random.default_rng(seed).uniform(1, 20)
    oracle = KaplanMeierFitter().fit(time, event)
    survival, low, high = kaplan_meier(time, event, at)
    if at > time.max() and oracle.predict(at) > 0:
        assert np.isnan([survival, low, high]).all()
        return
    assert survival == pytest.approx(oracle.predict(at))
    if 0 < survival < 1:
        ends = oracle.confidence_interval_
        assert [low, high] == pytest.approx(ends[ends.index <= at].iloc[-1])


def test_calibration_by_sums_and_by_kaplan_meier_find_the_truth():
    rng, at, wrong = np.random.default_rng(1), 1.0, 1.5
    log_hazard = rng.normal(-1, 1, 40000)
    time, end = rng.exponential(np.exp(-log_hazard)), rng.exponential(2.0, 40000)
    time, event = np.minimum(time, end), time < end
    hazard = np.exp(log_hazard) / wrong
    risk, part = -np.expm1(-hazard * at), np.searchsorted([-2, -1, 0], log_hazard)
    columns = np.ones_like(risk), risk, event * (time <= at), hazard * np.minimum(time, at)
    sums = np.stack([np.bincount(part, column) for column in columns])
    for bins in (calibration(risk, time, event, at), calibration_of_sums(sums)):
        truth = -np.expm1(wrong * np.log1p(-bins.risk))  # of a group's mean risk, about
        assert np.abs(bins.observed / truth - 1).max() < 0.1
        assert (bins.low < bins.observed).all() and (bins.observed < bins.high).all()
    assert bins.rows.sum() == 40000


def test_the_interval_of_sums_is_poisson_s():
    cells = np.array([[100.0, 100, 0], [20.0, 20, 0], [0.0, 7, 0], [6.0, 6, 0]])
    bins = calibration_of_sums(cells)
    assert len(bins.rows) == 2 and bins.low[0] == 0 == bins.observed[0]
    low, high = (np.log1p(-end[1]) / np.log1p(-0.2) * 6 for end in (bins.low, bins.high))
    assert 1 - gammainc(7, low) == pytest.approx(0.975) and gammainc(8, high) == pytest.approx(
        0.975
    )
