"""The signed-rank test knows which method is better, and by how much to call them equal."""

import numpy as np
import pytest
from baycomp import SignedRankTest

from fedbary import stats
from fedbary.stats import signed_rank

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
def test_knows_the_better_method(few_draws, lower_is_better):
    good = BASE + (-1 if lower_is_better else 1) * (0.02 + NOISE)
    result = signed_rank(good, BASE, lower_is_better)
    assert result.first > 0.99 and result.second < 0.001
    result = signed_rank(BASE, good, lower_is_better)
    assert result.second > 0.99 and result.first < 0.001


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


def test_ties_leave_a_rope_above_zero(few_draws, monkeypatch):
    ropes = []
    sample = SignedRankTest.sample.__func__

    def spy(cls, x, y, rope, **settings):
        ropes.append(rope)
        return sample(cls, x, y, rope, **settings)

    monkeypatch.setattr(SignedRankTest, "sample", classmethod(spy))
    result = signed_rank([1, 1, 1, 1.5, 1.25, 2], [1, 1, 1, 1, 1, 1], lower_is_better=True)
    assert result.rope == 0.25 and ropes == [0.25]
    assert result.equal > result.second > result.first == 0


def test_nothing_but_ties_is_equality_without_a_test(few_draws, monkeypatch):
    monkeypatch.setattr(SignedRankTest, "sample", None)
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
def test_scores_that_cannot_be_compared(first, second, message):
    with pytest.raises(ValueError, match=message):
        signed_rank(first, second, True)
