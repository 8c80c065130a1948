"""The tests know which method is better, by how much, and when to call them equal."""

import itertools
import math

import numpy as np
import pytest
from baycomp import SignedRankTest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import rankdata, ttest_1samp

from fedbary.scores import stats
from fedbary.scores.stats import paired, signed_rank

RNG = np.random.default_rng(0)
BASE = RNG.normal(1, 0.3, 27)
NOISE = RNG.normal(0, 0.01, 27)
CASES = {
    "clear": 0.02 + NOISE,
    "slight": 0.005 + NOISE,
    "even": NOISE,
    "two pairs": np.array([1.0, 3.0]),
    "ties": np.array([0.0, 0.0, 0.0, 0.01, -0.02, 0.03, 0.05]),
}


@pytest.fixture
def few_draws(monkeypatch):
    monkeypatch.setattr(stats, "DRAWS", 2000)


def masses(u, z, rope):
    """The mass of each region, by the formula, for weights u (draws, 1 + pairs)."""
    z = np.concatenate([[0], z])
    sums = z[:, None] + z
    above = np.where(sums == 2 * rope, 0.5, sums > 2 * rope)
    below = np.where(sums == -2 * rope, 0.5, sums < -2 * rope)
    first, second = (np.einsum("di,ij,dj->d", u, region, u) for region in (above, below))
    return np.stack([first, 1 - first - second, second], axis=1)


def mean_masses(z, rope):
    """Their means, from the second moments of the Dirichlet distribution."""
    a = np.concatenate([[0.5], np.ones(len(z))])
    second_moments = (np.outer(a, a) + np.diag(a)) / (a.sum() * (a.sum() + 1))
    root = np.linalg.cholesky(second_moments)
    return masses(root.T, z, rope).sum(0) + [0, 1 - root.shape[1], 0]


@pytest.mark.slow
@pytest.mark.parametrize("advantage", CASES.values(), ids=CASES)
def test_agrees_with_the_formula(advantage):
    result = signed_rank(advantage, np.zeros_like(advantage), lower_is_better=False)
    expected = mean_masses(advantage, result.rope)
    errors = result.sample.std(0) / np.sqrt(len(result.sample))
    assert (np.abs(result.sample.mean(0) - expected) <= 4 * errors + 1e-12).all()

    a = np.concatenate([[0.5], np.ones(len(advantage))])
    draws = masses(np.random.default_rng(1).dirichlet(a, 50_000), advantage, result.rope)
    expected = np.bincount(draws.argmax(1), minlength=3) / len(draws)
    assert [result.first, result.equal, result.second] == pytest.approx(expected, abs=0.015)
    assert result.sample.shape == (stats.DRAWS, 3)
    np.testing.assert_allclose(result.sample.sum(1), 1, atol=1e-12)
    winners = np.bincount(result.sample.argmax(1), minlength=3) / stats.DRAWS
    assert (result.first, result.equal, result.second) == tuple(winners)


@pytest.mark.parametrize("lower_is_better", [True, False])
def test_exchanging_the_methods_exchanges_the_outcomes(few_draws, lower_is_better):
    base, other = BASE[:8], (BASE + NOISE)[:8]
    one = signed_rank(base, other, lower_is_better, seed=3)
    two = signed_rank(other, base, lower_is_better, seed=3)
    assert len({one.first, one.equal, one.second} - {0, 1}) == 3
    assert (one.first, one.equal, one.second) == (two.second, two.equal, two.first)
    assert np.array_equal(one.sample, two.sample[:, ::-1])
    flipped = signed_rank(base, other, not lower_is_better, seed=3)
    assert np.array_equal(flipped.sample, two.sample)


def test_the_rope_is_the_lower_quartile_of_the_differences(few_draws):
    result = signed_rank([5, 1, 2, 3, 4], [0, 2, 0, 0, 0], lower_is_better=True)
    assert (result.rope, result.pairs) == (2, 5)
    assert signed_rank(BASE + NOISE, BASE, True).rope == pytest.approx(
        np.percentile(np.abs(NOISE), 25), rel=1e-9
    )


@settings(max_examples=10)
@given(st.lists(st.integers(-4, 4), min_size=1, max_size=12).filter(any), st.integers(0, 2**32 - 1))
def test_the_draws_are_those_of_the_library_of_its_authors(advantages, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stats, "DRAWS", 200)
        found = signed_rank(advantages, np.zeros(len(advantages)), False, seed)
    theirs = SignedRankTest(
        np.array(advantages, float), np.zeros(len(advantages)), found.rope,
        nsamples=200, random_state=seed,
    )  # fmt: skip
    np.testing.assert_allclose(found.sample, theirs.sample, rtol=0, atol=1e-12)


def test_ties_leave_a_rope_above_zero(few_draws):
    result = signed_rank([1, 1, 1, 1.5, 1.25, 2], [1, 1, 1, 1, 1, 1], lower_is_better=True)
    assert result.rope == 0.25
    assert result.equal > result.second > result.first == 0


def test_nothing_but_ties_is_equality_without_draws(few_draws, monkeypatch):
    monkeypatch.setattr(np.random, "RandomState", None)
    result = signed_rank(BASE, BASE, lower_is_better=True)
    assert (result.first, result.equal, result.second, result.rope) == (0, 1, 0, 0)
    assert result.pairs == 27 and (result.sample == [0, 1, 0]).all()
    assert len(result.sample) == 2000


def test_a_constant_difference_is_its_own_rope(few_draws):
    result = signed_rank([3.0] * 9, [1.0] * 9, lower_is_better=False)
    assert result.rope == 2 and result.equal == 1


def test_the_seed_alone_decides(few_draws):
    other = BASE + NOISE
    np.random.seed(7)
    before = np.random.get_state()[1].copy()
    one = signed_rank(BASE, other, True, seed=1)
    assert np.array_equal(np.random.get_state()[1], before)
    np.random.seed(8)
    assert np.array_equal(signed_rank(BASE, other, True, seed=1).sample, one.sample)
    assert not np.array_equal(signed_rank(BASE, other, True, seed=2).sample, one.sample)


def test_inputs_are_not_changed(few_draws):
    first, second = BASE.copy(), BASE + NOISE
    signed_rank(first, second, True)
    assert np.array_equal(first, BASE) and np.array_equal(second, BASE + NOISE)


@pytest.mark.parametrize("compare", [paired, lambda a, b: signed_rank(a, b, True)])
@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ([1.0], [1.0, 2.0], r"per pair; got \(1,\) and \(2,\)"),
        ([], [], "per pair"),
        ([[1.0]], [[2.0]], "per pair"),
        ([1.0, float("nan")], [1.0, 2.0], "finite"),
        ([1.0, 2.0], [1.0, float("inf")], "finite"),
    ],
)
def test_scores_that_cannot_be_compared(compare, first, second, message):
    with pytest.raises(ValueError, match=message):
        compare(first, second)


def test_the_interval_and_the_t_test_are_those_of_a_worked_example():
    """Student's sleep data (1908): mean 1.58, s 1.23 of ten pairs, t = 4.0621, p = 0.002833."""
    first = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
    second = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
    found = paired(first, second)
    assert found.pairs == 10 and found.mean == pytest.approx(1.58)
    assert (found.low, found.high) == pytest.approx((0.7001142, 2.4598858), abs=1e-6)
    assert found.t_test == pytest.approx(0.002833, abs=1e-6)


@settings(max_examples=15)
@given(st.lists(st.integers(-1000, 1000).filter(bool), min_size=2, max_size=9, unique_by=abs))
def test_wilcoxon_s_p_is_the_share_of_signs_as_uneven_as_these(differences):
    ranks = rankdata(np.abs(differences))
    uneven = abs(np.sum(np.sign(differences) * ranks))
    signs = itertools.product((-1, 1), repeat=len(ranks))
    share = np.mean([abs(np.dot(sign, ranks)) >= uneven for sign in signs])
    found = paired(differences, np.zeros(len(differences)))
    assert found.wilcoxon == pytest.approx(share)
    assert found.wilcoxon >= 2.0 ** (1 - len(differences))


@settings(max_examples=15)
@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3)), min_size=1, max_size=6))
def test_exchanging_the_methods_mirrors_the_effect(pairs):
    first, second = zip(*pairs, strict=True)
    one, two = paired(first, second), paired(second, first)
    assert (one.mean, one.t_test, one.wilcoxon) == pytest.approx(
        (-two.mean, two.t_test, two.wilcoxon), nan_ok=True
    )
    assert (one.low, one.high) == pytest.approx((-two.high, -two.low), nan_ok=True)
    assert math.isnan(one.low) or one.low <= one.mean <= one.high
    assert math.isnan(one.t_test) == math.isnan(one.low) == math.isnan(one.least)
    assert (one.pairs == 1) == math.isnan(one.wilcoxon)


@pytest.mark.slow
def test_the_interval_holds_the_true_difference_as_often_as_it_says():
    rng = np.random.default_rng(0)
    found = [paired(0.3 + rng.normal(size=3), np.zeros(3)) for _ in range(1000)]
    held = np.mean([one.low <= 0.3 <= one.high for one in found])
    assert held == pytest.approx(0.95, abs=4 * math.sqrt(0.95 * 0.05 / 1000))


def test_ties_alone_are_no_difference_and_equal_differences_do_not_tell_their_spread():
    tied = paired([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    assert (tied.mean, tied.low, tied.high, tied.t_test, tied.wilcoxon) == (0, 0, 0, 1, 1)
    same = paired([0.1, 0.2, 0.3], [0.0, 0.1, 0.2])
    assert (same.mean, same.wilcoxon) == (pytest.approx(0.1), 0.25)
    assert all(map(math.isnan, (same.low, same.high, same.t_test, same.least)))


@pytest.mark.parametrize("pairs", [5, 20])
def test_the_least_effect_is_found_in_four_of_five_repetitions(pairs):
    """Its formula takes the spread; with the true spread the test has that power."""
    noise = np.random.default_rng(0).normal(size=(4000, pairs))
    unit = paired(noise[0], np.zeros(pairs)).least / noise[0].std(ddof=1)
    p = ttest_1samp(noise + unit, 0, axis=1).pvalue
    assert np.mean(p < 0.05) == pytest.approx(0.8, abs=0.05)
    assert np.isnan(paired([1.0], [0.0]).least)
