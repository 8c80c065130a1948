"""The α-barycentre: the known values, its limits, its laws, and agreement with scipy's quad."""

import math

import numpy as np
import pytest
import torch
from aggregation_formulas import gaussian, moments
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import minimize_scalar

from fedbary.aggregation import aggregate
from fedbary.errors import SettingError
from findings import alpha as alpha_module
from findings.alpha import alpha_barycentre, alpha_density

TOY = torch.tensor([0.0, 2.0]).double(), torch.tensor([1.0, 0.25]).double().log()
ALPHAS = [0, 1e-6, 1e-3, 0.05, 0.25, 0.5, 1, 2, 4, -0.3, -2]
LAW_ALPHAS = [0, 0.05, 0.5, 2, -0.3]


@st.composite
def federations(draw, separation=(0.1, 1.0, 10.0)):
    """Draw means and log-variances [clients, 3], stds up to 300 times apart, and weights."""
    clients = draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    m = draw(st.sampled_from(separation)) * rng.standard_normal((clients, 3))
    lv = rng.uniform(0, 2 * math.log(draw(st.sampled_from([1, 10, 300]))), (clients, 3))
    return torch.tensor(m), torch.tensor(-lv), torch.tensor(10 ** rng.uniform(-3, 0, clients))


def assert_same(actual, expected, tolerance):
    """Means within a share of the standard deviation, variances within a share of themselves."""
    (mean, log_var), (true_mean, true_log_var) = np.array(actual), np.array(expected)
    shift = (mean - true_mean) * np.exp(-0.5 * true_log_var)
    np.testing.assert_allclose(shift, 0, atol=tolerance)
    np.testing.assert_allclose(log_var, true_log_var, rtol=0, atol=tolerance)


def log_density(x, m, lv, w, alpha):
    """The logarithm of (Σ w p^α)^{1/α} at one x, from the definition."""
    log_p = -0.5 * ((x - m) ** 2 / np.exp(lv) + lv + math.log(2 * math.pi))
    w = w / w.sum()
    return np.logaddexp.reduce(np.log(w) + alpha * log_p) / alpha if alpha else w @ log_p


def by_quad(m, lv, w, alpha):
    """Mass, mean and variance of a one-element α-barycentre by scipy's adaptive quadrature."""
    std = np.exp(0.5 * lv)
    inner = (m[:, None] + std[:, None] * [-9, -4, -2, -1, 0, 1, 2, 4, 9]).ravel()
    reach = [m.min() - 15 * std.max(), m.max() + 15 * std.max()]
    grid = np.sort([*inner, *np.linspace(*reach, 2001)])

    def height(x):
        return log_density(x, m, lv, w, alpha)

    best = min(max(range(len(grid)), key=lambda i: height(grid[i])), len(grid) - 2)
    around = grid[best - 1], grid[best + 1]
    peak = minimize_scalar(lambda x: -height(x), bounds=around, options={"xatol": 1e-12}).x
    near = 10.0 ** np.arange(-6, 2)
    ends = np.unique(np.round([*inner, *reach, peak, *(peak - near), *(peak + near)], 9))
    top = height(peak)

    def integral(power, centre):
        def f(x):
            return (x - centre) ** power * math.exp(height(x) - top)

        pairs = zip(ends, ends[1:], strict=False)
        return sum(quad(f, a, b, epsabs=1e-11, epsrel=1e-8, limit=200)[0] for a, b in pairs)

    mass = integral(0, 0)
    mean = integral(1, 0) / mass
    return mass * math.exp(top), mean, integral(2, mean) / mass


@pytest.mark.parametrize(
    ("alpha", "mean", "var"),
    [
        (0, 1.600, 0.400),
        (1e-9, 1.600, 0.400),
        (0.25, 1.441, 0.818),
        (0.5, 1.172, 1.347),
        (1, 1.000, 1.625),
        (2, 0.962, 1.708),
    ],
)
def test_toy_values(alpha, mean, var):
    m, lv = alpha_barycentre(*TOY, torch.tensor([3, 3]), alpha)
    assert m.shape == lv.shape == ()
    assert m.item() == pytest.approx(mean, abs=6e-4)
    assert lv.exp().item() == pytest.approx(var, abs=6e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "rule", "tolerance"), [(0, "RKLB", 1e-7), (1, "FKLB", 1e-8)])
@given(federation=federations((0.1, 1.0, 10.0, 100.0)))
@settings(max_examples=60, deadline=None)
def test_is_rklb_and_fklb_at_the_ends(alpha, rule, tolerance, federation):
    m, lv, w = federation
    clients = [gaussian(a, b, torch.float64) for a, b in zip(m, lv, strict=True)]
    expected = moments(aggregate(rule, clients, w.tolist()))
    assert_same(alpha_barycentre(m, lv, w, alpha), expected, tolerance)


@pytest.mark.parametrize("sign", [1, -1])
def test_approaches_the_limit_in_proportion_to_alpha(sign):
    w = torch.tensor([0.3, 0.7])
    limit_mean, limit_log_var = alpha_barycentre(*TOY, w, 0)
    gaps = []
    for alpha in (1e-3, 1e-4, 1e-5, 1e-6):
        mean, log_var = alpha_barycentre(*TOY, w, sign * alpha)
        gaps.append([(mean - limit_mean) / alpha, (log_var - limit_log_var) / alpha])
    gaps = np.array(gaps)
    assert (np.abs(gaps[0]) > 0.01).all()
    np.testing.assert_allclose(gaps[1:], gaps[:-1], rtol=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("alpha", ALPHAS)
def test_agrees_with_quad(alpha):
    rng = np.random.default_rng(5)
    m = rng.standard_normal((4, 5)) * [0.1, 1, 3, 3, 8]
    lv = 2 * np.log(10 ** rng.uniform(-2, 0, (4, 5)))
    w = rng.uniform(0.05, 1, 4)
    lv[:2, 0] = [math.log(1e-4), 0]
    results = [by_quad(m[:, i], lv[:, i], w, alpha) for i in range(5)]
    _, mean, var = np.array(results).T
    actual = alpha_barycentre(*map(torch.tensor, (m, lv, w)), alpha)
    assert_same(actual, (mean, np.log(var)), 1e-7 if 0 <= alpha <= 1 else 1e-5)


@pytest.mark.parametrize("alpha", [0, 1e-4, 0.01, -1])
def test_finds_the_mass_between_components_far_apart(alpha):
    m, lv = np.array([-50.0, 53.0]), np.array([0.0, -1.0])
    w = np.array([0.4, 0.6])
    _, mean, var = by_quad(m, lv, w, alpha)
    actual = alpha_barycentre(*map(torch.tensor, (m, lv, w)), alpha)
    assert_same(actual, (mean, math.log(var)), 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("alpha", LAW_ALPHAS)
@given(federation=federations(), seed=st.integers(0, 99))
@settings(max_examples=10, deadline=None)
def test_neither_the_order_of_clients_nor_the_scale_of_weights_matters(alpha, federation, seed):
    m, lv, w = federation
    order = torch.tensor(np.random.default_rng(seed).permutation(len(w)))
    other = alpha_barycentre(m[order], lv[order], 1e3 * w[order], alpha)
    assert_same(other, alpha_barycentre(m, lv, w, alpha), 1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("alpha", LAW_ALPHAS)
@given(
    federation=federations(),
    scale=st.sampled_from([-2.0, 0.01, 300.0]),
    shift=st.sampled_from([0.0, 1.0, -40.0]),
)
@settings(max_examples=10, deadline=None)
def test_moves_and_stretches_with_the_components(alpha, federation, scale, shift):
    m, lv, w = federation
    mean, log_var = alpha_barycentre(m, lv, w, alpha)
    stretch = 2 * math.log(abs(scale))
    moved = alpha_barycentre(scale * m + shift, lv + stretch, w, alpha)
    assert_same(moved, (scale * mean + shift, log_var + stretch), 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("alpha", LAW_ALPHAS)
@given(federation=federations(), clients=st.integers(1, 4))
@settings(max_examples=10, deadline=None)
def test_equal_components_aggregate_to_themselves(alpha, federation, clients):
    m, lv, _ = federation
    weights = torch.arange(1.0, clients + 1)
    mean, log_var = alpha_barycentre(m[[0] * clients], lv[[0] * clients], weights, alpha)
    assert_same((mean, log_var), (m[0], lv[0]), 1e-9)


@pytest.mark.parametrize("alpha", [0, 0.5, 2, -1])
def test_a_client_of_no_weight_is_not_there(alpha):
    m, lv = torch.tensor([0.0, 2.0, 9.0]).double(), torch.tensor([0.0, -1.0, 5.0]).double()
    with_it = alpha_barycentre(m, lv, torch.tensor([0.5, 0.5, 0]), alpha)
    without = alpha_barycentre(m[:2], lv[:2], torch.tensor([0.5, 0.5]), alpha)
    assert with_it == without


@pytest.mark.slow
def test_every_element_is_its_own(monkeypatch):
    monkeypatch.setattr(alpha_module, "_BUDGET", 1 << 20)
    torch.manual_seed(0)
    m, lv = torch.randn(3, 30, 30), torch.randn(3, 30, 30)
    w = torch.tensor([1.0, 2.0, 3.0])
    copies = m.clone(), lv.clone(), w.clone()
    mean, log_var = alpha_barycentre(m, lv, w, 0.5)
    assert mean.shape == log_var.shape == (30, 30) and mean.dtype == log_var.dtype == m.dtype
    for at in [(0, 0), (17, 3), (29, 29)]:
        alone = alpha_barycentre(m[:, *at], lv[:, *at], w, 0.5)
        assert_same((mean[at], log_var[at]), alone, 1e-5)
    assert all(map(torch.equal, copies, (m, lv, w)))
    assert alpha_barycentre(m[:, :0], lv[:, :0], w, 0.5)[0].shape == (0, 30)


@pytest.mark.slow
@pytest.mark.parametrize("alpha", ALPHAS)
def test_density_is_the_definition_over_its_integral(alpha):
    m, lv, w = np.array([0.0, 2.0, 2.1]), np.array([0.0, -1.4, -9.0]), np.array([0.5, 0.3, 0.2])
    mass, _, _ = by_quad(m, lv, w, alpha)
    x = np.array([-7.0, -1.0, 0.0, 1.7, 2.1, 2.13, 4.0])
    expected = [math.exp(log_density(at, m, lv, w, alpha)) / mass for at in x]
    density = alpha_density(*map(torch.tensor, (x, m, lv, w)), alpha)
    np.testing.assert_allclose(density, expected, rtol=1e-5)


def test_density_is_the_mixture_at_one():
    x = torch.linspace(-3, 4, 9)
    density = alpha_density(x, *TOY, torch.tensor([1, 3]), 1)
    normal = torch.distributions.Normal
    parts = [normal(m, (lv / 2).exp()).log_prob(x).exp() for m, lv in zip(*TOY, strict=True)]
    assert density.dtype == x.dtype
    np.testing.assert_allclose(density, 0.25 * parts[0] + 0.75 * parts[1], rtol=1e-5)


@pytest.mark.parametrize("function", [alpha_barycentre, lambda *a: alpha_density(TOY[0], *a)])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"alpha": math.nan}, "alpha: nan"),
        ({"alpha": math.inf}, "alpha: inf"),
        ({"weights": torch.tensor([1.0, -1.0])}, "weights: -1.0"),
        ({"weights": torch.zeros(2)}, "at least one positive"),
    ],
)
def test_settings_that_are_not_allowed(function, change, message):
    settings = {"weights": torch.ones(2), "alpha": 0.5} | change
    with pytest.raises(SettingError, match=message):
        function(*TOY, settings["weights"], settings["alpha"])


@pytest.mark.parametrize(
    ("means", "log_vars", "weights"), [((2,), (3,), 2), ((2,), (2,), 3), ((), (), 1)]
)
def test_shapes_that_do_not_fit(means, log_vars, weights):
    with pytest.raises(ValueError, match="means and log_vars must be"):
        alpha_barycentre(torch.zeros(means), torch.zeros(log_vars), torch.ones(weights), 1)
