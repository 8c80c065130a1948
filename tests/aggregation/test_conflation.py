"""Conflations are normalised products of densities, and combine data exactly under flat priors."""

import numpy as np
import pytest
import torch
from aggregation_formulas import gaussian, moments
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbary.aggregation import RULES, aggregate

NUMBERS = st.integers(0, 2**32 - 1).map(np.random.default_rng)
SHARES = {"Conflation": np.ones_like, "WeightedConflation": lambda w: w / w.max()}


@pytest.mark.parametrize("rule", SHARES)
@given(rng=NUMBERS, clients=st.integers(1, 6))
def test_it_is_the_product_of_the_densities_to_its_powers(rule, rng, clients):
    """Mean and variance of the product on a grid."""
    m, lv = rng.normal(0, 2, (clients, 1)), rng.uniform(-2, 1, (clients, 1))
    w = rng.uniform(0.05, 9, clients)
    sent = [gaussian(a, b, torch.float64) for a, b in zip(m, lv, strict=True)]
    mean, log_var = moments(aggregate(rule, sent, w.tolist()))
    x = np.linspace(-30, 30, 40_001)
    log_density = (SHARES[rule](w)[:, None] * (-0.5 * (x - m) ** 2 / np.exp(lv))).sum(0)
    mass = np.exp(log_density - log_density.max())
    mass /= mass.sum()
    expected = (mass * x).sum()
    np.testing.assert_allclose(mean, expected, atol=1e-7)
    np.testing.assert_allclose(np.exp(log_var), (mass * (x - expected) ** 2).sum(), rtol=1e-6)


def test_conflation_of_clients_under_flat_priors_is_the_posterior_of_all_data():
    rng = np.random.default_rng(0)
    data = [rng.normal(1.0, 0.5, size) for size in (3, 10, 40)]
    sent = [gaussian([y.mean()], [np.log(0.25 / len(y))], torch.float64) for y in data]
    mean, log_var = moments(aggregate("Conflation", sent, [7, 1, 1]))
    everything = np.concatenate(data)
    assert mean == pytest.approx(everything.mean(), rel=1e-12)
    assert np.exp(log_var) == pytest.approx(0.25 / len(everything), rel=1e-12)


@pytest.mark.parametrize("rule", SHARES)
@given(rng=NUMBERS, clients=st.integers(2, 40))
@settings(max_examples=20)
def test_equal_clients_have_a_variance_divided_by_their_number(rule, rng, clients):
    m, lv = rng.normal(size=3), rng.uniform(-40, 40, 3)
    mean, log_var = moments(
        aggregate(rule, [gaussian(m, lv, torch.float64)] * clients, [2.0] * clients)
    )
    np.testing.assert_allclose(mean, m, rtol=1e-12)
    np.testing.assert_allclose(log_var, lv - np.log(clients), rtol=1e-12, atol=1e-12)
    assert not RULES[rule].is_mean
