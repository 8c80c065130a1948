"""Intervals by the numbers of rows: they cover, and hold the score."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm, rankdata

from fedbary.predictive import Forecast, Prediction
from fedbary.predictive.conformal import interval
from fedbary.scores.intervals import TWO_SIDED, of_auroc
from fedbary.scores.regression import score as score_numbers
from fedbary.scores.tables import score as score_classes
from fedbary.trained.judgement import judged

COUNTS = st.lists(st.tuples(st.floats(0.5, 500), st.floats(0.5, 500)), min_size=1, max_size=4)


@given(st.floats(0, 1), COUNTS)
def test_an_auroc_lies_in_its_interval_which_mirrors(auroc, counts):
    low, high = of_auroc(auroc, counts)
    assert 0 <= low <= auroc <= high <= 1 and low < high
    mirrored = of_auroc(1 - auroc, [(n, m) for m, n in counts])
    assert mirrored == pytest.approx((1 - high, 1 - low), abs=1e-6)


@given(st.floats(0.3, 0.9), st.integers(2000, 20000))
def test_with_many_rows_it_is_hanley_and_mcneils(auroc, rows):
    m, n = rows, 3 * rows
    q1, q2 = auroc / (2 - auroc), 2 * auroc**2 / (1 + auroc)
    more = (m - 1) * (q1 - auroc**2) + (n - 1) * (q2 - auroc**2)
    std = math.sqrt((auroc * (1 - auroc) + more) / (m * n))
    low, high = of_auroc(auroc, [(m, n)])
    assert high - low == pytest.approx(2 * TWO_SIDED * std, rel=0.15)


def test_no_events_no_interval():
    assert all(
        map(
            math.isnan,
            [*of_auroc(0.5, [(0, 9)]), *of_auroc(0.5, []), *of_auroc(math.nan, [(2, 9)])],
        )
    )


@pytest.mark.parametrize("auroc", [0.6, 0.9])
@pytest.mark.parametrize("sites", [[(4, 60)], [(30, 200)], [(5, 40), (12, 25), (3, 90)]])
def test_it_holds_the_true_auroc_in_95_of_100_draws(auroc, sites):
    """Binormal scores, 2,000 draws: a coverage of 95 % has a standard error of 0.5 points."""
    rng, apart = np.random.default_rng(0), norm.ppf(auroc) * 2**0.5
    pairs, found = np.array([m * n for m, n in sites]), 0
    for _ in range(2000):
        own = []
        for m, n in sites:
            ranks = rankdata(np.r_[rng.normal(apart, 1, m), rng.normal(0, 1, n)])
            own.append((ranks[:m].sum() - m * (m + 1) / 2) / (m * n))
        low, high = of_auroc(float(pairs @ own / pairs.sum()), sites)
        found += low <= auroc <= high
    assert 0.935 <= found / 2000 <= 0.98


def test_no_event_that_is_found_leaves_an_interval_all_the_same():
    """Drawn anew, a sensitivity of 0 stays 0: its interval is that of 0 of so many events."""
    y = torch.arange(40) % 10 == 0
    risk = torch.where(y, 0.1, 0.4)
    held = Prediction(torch.stack([1 - risk, risk], 1), torch.zeros(40))
    task = SimpleNamespace(judged=lambda held, y: score_classes(held.probs, y))
    found = judged(task, {"model": held}, y.long(), torch.arange(40))["model"]
    assert found["sensitivity"] == (0.0, *interval(0, 4))
    assert all(low <= value <= high for value, low, high in found.values())


def test_targets_in_an_interval_are_a_rate():
    forecast = Forecast(torch.zeros(30), torch.zeros(30), torch.ones(30))
    y = torch.cat([torch.zeros(27), torch.full((3,), 9.0)])
    task = SimpleNamespace(judged=score_numbers)
    found = judged(task, {"model": forecast}, y, torch.arange(30))["model"]
    for level in (50, 90, 95):
        assert found[f"coverage_{level}"] == (0.9, *interval(27, 30))
