"""The interval of an AUROC by the numbers of rows: it covers, and holds the AUROC."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm, rankdata

from fedbary.scores.intervals import TWO_SIDED, of_auroc

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
