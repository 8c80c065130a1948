"""α-barycentres in closed form: the quadrature's, the least Hellinger distance, FKLB at α = 1."""

import numpy as np
import pytest
import torch
from aggregation_formulas import gaussian, moments
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from fedbary.aggregation import RULES, JointRule, aggregate
from fedbary.aggregation.hb import rooted
from fedbary.gaussian import Posterior
from fedbary.methods import Reply, Server
from fedbary.methods.barycentre import Barycentre


def federation(seed, clients, spread):
    rng = np.random.default_rng(seed)
    m, lv = spread * rng.normal(size=(clients, 4)), rng.uniform(-4, 0, (clients, 4))
    return m, lv, rng.uniform(0.05, 1, clients)


def by_quadrature(m, lv, w, alpha):
    """Mean and log-variance of p ∝ (Σ w N(m, v)^α)^{1/α}, element by element, on a fine grid."""
    std, pairs = np.exp(0.5 * lv), []
    for at in range(m.shape[1]):
        ends = m[:, at].min() - 12 * std[:, at].max(), m[:, at].max() + 12 * std[:, at].max()
        x = np.arange(*ends, std[:, at].min() / 50)
        distance = (x[:, None] - m[:, at]) / std[:, at]
        log_p = -0.5 * (distance**2 + lv[:, at])
        density = np.logaddexp.reduce(alpha * log_p + np.log(w), axis=1) / alpha
        mass = np.exp(density - density.max())
        mean = np.average(x, weights=mass)
        pairs.append((mean, np.log(np.average((x - mean) ** 2, weights=mass))))
    return np.array(pairs).T


def found(rule, m, lv, w):
    clients = [gaussian(a, b, torch.float64) for a, b in zip(m, lv, strict=True)]
    return moments(aggregate(rule, clients, w.tolist()))


@pytest.mark.slow
@pytest.mark.parametrize("root", [2, 3, 4])
@given(
    seed=st.integers(0, 2**32 - 1),
    clients=st.integers(1, 5),
    spread=st.sampled_from([0.0, 0.3, 2.0, 10.0]),
)
@settings(max_examples=12)
def test_it_has_the_moments_of_the_alpha_barycentre(root, seed, clients, spread):
    """By quadrature of (Σ w p^α)^{1/α}."""
    m, lv, w = federation(seed, clients, spread)
    mean, log_var = found(rooted(root), m, lv, w)
    true_mean, true_log_var = by_quadrature(m, lv, w, 1 / root)
    np.testing.assert_allclose((mean - true_mean) / np.exp(0.5 * true_log_var), 0, atol=1e-7)
    np.testing.assert_allclose(log_var, true_log_var, atol=1e-7)


@given(seed=st.integers(0, 2**32 - 1), clients=st.integers(1, 8))
@settings(max_examples=20)
def test_at_one_it_is_the_forward_kl_barycentre(seed, clients):
    m, lv, w = federation(seed, clients, 3.0)
    np.testing.assert_allclose(found(rooted(1), m, lv, w), found("FKLB", m, lv, w), atol=1e-9)


@pytest.mark.slow
def test_the_pool_is_the_nearest_density_in_hellinger_s_distance():
    """Among all densities on a grid; the moments are those of the nearest."""
    x = torch.linspace(-8, 8, 81, dtype=torch.float64)
    m, lv, w = [-1.0, 2.0, 0.5], [0.0, -1.0, 0.5], torch.tensor([0.5, 0.3, 0.2]).double()
    normal = torch.distributions.Normal
    roots = torch.stack(
        [normal(a, np.exp(b / 2)).log_prob(x).exp().sqrt() for a, b in zip(m, lv, strict=True)]
    )

    def distance(half_logs):
        q = torch.tensor(half_logs).softmax(0).requires_grad_() / 0.2
        root = q.sqrt()
        loss = (w[:, None] * (root - roots).square()).sum() * 0.2
        slope = -(w @ roots) / root * 0.2  # by q, as Σ q is 1
        q = q * 0.2
        return loss.item(), (q * (slope - (q * slope).sum()) / 0.2).detach().numpy()

    start = np.log(1e-6 + np.exp(-(x.numpy() ** 2) / 8))
    best = minimize(distance, start, jac=True, options={"maxiter": 400, "gtol": 1e-8}).x
    q = torch.tensor(best).softmax(0)
    mean = (q * x).sum()
    var = (q * (x - mean).square()).sum()
    arrays = np.array(m)[:, None], np.array(lv)[:, None], w.numpy()
    expected_mean, expected_log_var = found("HB", *arrays)
    assert mean.item() == pytest.approx(expected_mean.item(), abs=1e-3)
    assert var.item() == pytest.approx(np.exp(expected_log_var).item(), abs=1e-3)


def test_clients_that_agree_outvote_one_that_does_not():
    """By their overlap: at a distance the one keeps its squared weight alone, where FKLB's is w."""
    arrays = np.array([[0.0], [0.0], [0.0], [50.0]]), np.zeros((4, 1)), np.ones(4)
    mean, _ = found("HB", *arrays)
    assert mean == pytest.approx(50 * 1 / (9 + 1), rel=1e-9)
    assert found("FKLB", *arrays)[0] == pytest.approx(50 / 4)


@pytest.mark.parametrize("ratio", [None, 1.5])
def test_momentum_bounds_and_other_tensors_are_as_under_every_rule(ratio):
    generator = torch.Generator().manual_seed(0)
    sent = [
        Reply(str(k), 1.0 + k, {
            "w_mean": torch.randn(9_000, generator=generator),
            "w_log_var": torch.randn(9_000, generator=generator),
            "c": torch.randn(3, generator=generator, dtype=torch.complex64),
            "steps": torch.tensor(k),
        })
        for k in range(3)
    ]  # fmt: skip
    rule = rooted(3)
    model, _ = Barycentre(rule, max_precision_ratio=ratio).aggregate(
        Server(sent[0].tensors, {}), sent
    )
    posteriors = [Posterior.from_state_dict(reply.tensors) for reply in sent]
    expected = aggregate(rule, iter(posteriors), [1, 2, 3], ratio).state_dict()
    assert list(model) == list(expected)
    torch.testing.assert_close(model, expected)
    mean = sum((1 + k) / 6 * reply.tensors["c"] for k, reply in enumerate(sent))
    torch.testing.assert_close(model["c"], mean)
    assert model["steps"] == 1
    if ratio:
        assert not torch.equal(model["w_mean"], aggregate(rule, posteriors, [1, 2, 3]).mean["w"])


def test_it_is_a_joint_rule_by_its_name():
    assert isinstance(RULES["HB"], JointRule) and RULES["HB"].is_mean
