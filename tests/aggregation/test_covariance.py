"""Barycentres of full covariances minimise their objectives; diagonal ones are the rules."""

import numpy as np
import pytest
import torch
from aggregation_formulas import gaussian, moments
from hypothesis import given, settings
from hypothesis import strategies as st
from ot.gaussian import bures_wasserstein_barycenter
from scipy.linalg import sqrtm
from scipy.optimize import minimize

from fedbary.aggregation import aggregate
from fedbary.aggregation.covariance import (
    packed,
    reverse_kl_barycentre,
    unpacked,
    wasserstein_barycentre,
    with_ridge,
)

BARYCENTRES = {"RKLB": reverse_kl_barycentre, "WB": wasserstein_barycentre}


def federation(seed, clients, size, spread=1.0):
    """Means, covariances whose eigenvalues lie up to e^(4 spread) apart, weights."""
    rng = np.random.default_rng(seed)
    axes = np.linalg.qr(rng.normal(size=(clients, size, size)))[0]
    values = np.exp(spread * rng.uniform(-2, 2, (clients, 1, size)))
    weights = rng.uniform(0.1, 1, clients)
    covariances = (axes * values) @ axes.transpose(0, 2, 1)
    arrays = rng.normal(size=(clients, size)), covariances, weights / weights.sum()
    return tuple(map(torch.from_numpy, arrays))


def kl(mean, covariance, other_mean, other):
    """KL(N(mean, covariance) ‖ N(other_mean, other))."""
    inverse, gap = np.linalg.inv(other), other_mean - mean
    logs = np.linalg.slogdet(other)[1] - np.linalg.slogdet(covariance)[1]
    return 0.5 * (np.trace(inverse @ covariance) + gap @ inverse @ gap - len(mean) + logs)


def bures(mean, covariance, other_mean, other):
    """The squared Wasserstein-2 distance."""
    root = sqrtm(other)
    cross = np.real(sqrtm(root @ covariance @ root))
    return ((mean - other_mean) ** 2).sum() + np.trace(covariance + other - 2 * cross)


@given(st.integers(0, 1000), st.integers(1, 5), st.integers(1, 6))
@settings(max_examples=20)
def test_the_wasserstein_barycentre_is_that_of_pot(seed, clients, size):
    means, covariances, weights = federation(seed, clients, size, 0.7)
    mean, covariance = wasserstein_barycentre(means, covariances, weights)
    expected = bures_wasserstein_barycenter(
        means.numpy(), covariances.numpy(), weights=weights.numpy(), num_iter=5000, eps=1e-10
    )
    np.testing.assert_allclose(mean, expected[0], atol=1e-10)
    np.testing.assert_allclose(covariance, expected[1], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("rule", "divergence"), [("RKLB", kl), ("WB", bures)])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_barycentre_minimises_its_divergence(rule, divergence, seed):
    """By a search over means and Cholesky factors, which knows no fixed point."""
    size, (means, covariances, weights) = 2, federation(seed, 3, 2, 0.7)
    clients = list(zip(means.numpy(), covariances.numpy(), weights.numpy(), strict=True))

    def parts(point):
        factor = np.zeros((size, size))
        factor[np.tril_indices(size)] = point[size:]
        return point[:size], factor @ factor.T

    def objective(point):
        mean, covariance = parts(point)
        return sum(w * divergence(mean, covariance, m, c) for m, c, w in clients)

    start = np.concatenate([np.zeros(size), np.eye(size)[np.tril_indices(size)]])
    best = minimize(objective, start, method="BFGS", options={"gtol": 1e-8})
    mean, covariance = BARYCENTRES[rule](means, covariances, weights)
    expected_mean, expected = parts(best.x)
    np.testing.assert_allclose(mean, expected_mean, atol=1e-5)
    np.testing.assert_allclose(covariance, expected, atol=1e-5)


@pytest.mark.parametrize("rule", BARYCENTRES)
@given(seed=st.integers(0, 2**32 - 1), clients=st.integers(1, 6), rotated=st.booleans())
@settings(max_examples=20)
def test_covariances_that_commute_have_the_barycentre_of_the_rule(rule, seed, clients, rotated):
    means, _, weights = federation(seed, clients, 5)
    rng = np.random.default_rng(seed)
    variances = torch.from_numpy(np.exp(rng.uniform(-6, 6, (clients, 5))))
    axes = torch.from_numpy(np.linalg.qr(rng.normal(size=(5, 5)))[0]) if rotated else torch.eye(5)
    axes = axes.double()
    mean, covariance = BARYCENTRES[rule](means, axes * variances[:, None] @ axes.T, weights)
    along = means @ axes
    sent = [gaussian(m, v.log(), torch.float64) for m, v in zip(along, variances, strict=True)]
    expected_mean, log_var = moments(aggregate(rule, sent, weights.tolist()))
    np.testing.assert_allclose(mean @ axes, expected_mean, rtol=1e-6, atol=1e-6)
    found = axes.T @ covariance @ axes
    largest = np.exp(log_var.max())  # rounding errors have its size
    np.testing.assert_allclose(found.diag(), np.exp(log_var), rtol=1e-6, atol=1e-9 * largest)
    np.testing.assert_allclose(found - found.diag().diag(), 0, atol=1e-7 * largest)


@pytest.mark.parametrize("rule", BARYCENTRES)
@given(seed=st.integers(0, 2**32 - 1), clients=st.integers(1, 5), size=st.integers(1, 8))
@settings(max_examples=20)
def test_order_is_irrelevant_equals_stay_and_the_order_of_traces_holds(rule, seed, clients, size):
    means, covariances, weights = federation(seed, clients, size)
    mean, covariance = BARYCENTRES[rule](means, covariances, weights)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(clients))
    other = BARYCENTRES[rule](means[order], covariances[order], weights[order])
    torch.testing.assert_close((mean, covariance), other, rtol=1e-6, atol=1e-6)
    same = BARYCENTRES[rule](means[[0] * clients], covariances[[0] * clients], weights)
    torch.testing.assert_close(same, (means[0], covariances[0]), rtol=1e-6, atol=1e-6)
    mixture = torch.tensordot(weights, covariances, 1)
    assert torch.linalg.eigvalsh(mixture - covariance).min() > -1e-8 * mixture.trace()


@pytest.mark.slow
def test_the_fixed_point_s_equation_holds_for_a_hundred_weights():
    means, covariances, weights = federation(0, 4, 100, 1.5)
    _, covariance = wasserstein_barycentre(means, covariances, weights)
    root = np.real(sqrtm(covariance.numpy()))
    middle = sum(
        w * np.real(sqrtm(root @ c @ root))
        for c, w in zip(covariances.numpy(), weights.numpy(), strict=True)
    )
    np.testing.assert_allclose(middle, covariance, atol=1e-6)


@given(seed=st.integers(0, 99), size=st.integers(1, 9))
@settings(max_examples=20)
def test_a_triangle_is_its_symmetric_matrix(seed, size):
    (_, (matrix,), _) = federation(seed, 1, size)
    matrix = (matrix + matrix.T) / 2
    assert torch.equal(unpacked(packed(matrix), size), matrix)
    assert len(packed(matrix)) == size * (size + 1) // 2


@given(
    seed=st.integers(0, 999),
    size=st.integers(1, 9),
    ridge=st.sampled_from([1e-3, 1.0]),
    scale=st.sampled_from([1e-4, 1.0, 1e4]),
)
def test_with_a_ridge_no_eigenvalue_is_below_half_of_it(seed, size, ridge, scale):
    rng = np.random.default_rng(seed)
    matrix = torch.from_numpy(scale * rng.normal(size=(size, size)))
    matrix = matrix + matrix.T
    found = with_ridge(matrix, ridge)
    assert torch.linalg.eigvalsh(found).min() >= ridge / 2 - 1e-12 * scale * size
    sound = matrix @ matrix
    expected = sound + ridge * torch.eye(size)
    torch.testing.assert_close(with_ridge(sound, ridge), expected, rtol=1e-9, atol=1e-9)
    if torch.linalg.eigvalsh(matrix).min() < -ridge:
        values, vectors = np.linalg.eigh(matrix.numpy())
        clipped = (vectors * (np.maximum(values, 0) + ridge)) @ vectors.T
        np.testing.assert_allclose(found, clipped, atol=1e-9 * scale + 1e-12)
