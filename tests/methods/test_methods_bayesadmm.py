"""BayesADMM ends at the posterior of all data, is PVI's step and ADMM's where these are special."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from linear_gaussian import (
    NOISE_VAR,
    assert_is,
    clients,
    exact_fit,
    independent,
    one_round,
    posterior_of_all,
    start,
)

from fedbary.methods import Reply, Server
from fedbary.methods._sites import factors
from fedbary.methods.bayesadmm import BayesADMM
from fedbary.methods.pvi import PVI


@pytest.mark.in_turn
@pytest.mark.parametrize(("correlation", "damping"), [(0.0, 0.1), (0.5, 0.1), (0.8, 0.2)])
@pytest.mark.parametrize("kl_weight", [1.0, 0.3])
def test_it_reaches_the_posterior_of_all_data(correlation, damping, kl_weight):
    data = clients(0, 4, features=3, correlation=correlation)
    method = BayesADMM(damping=damping, prior_std=0.7)
    model, state = start(method, data)
    for _ in range(400):
        model, state = one_round(method, model, state, data, range(4), kl_weight=kl_weight)
    assert_is(model, *posterior_of_all(data, 0.7, kl_weight))


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 10**6), st.integers(1, 6), st.floats(0.3, 3.0))
def test_one_round_is_exact_where_posteriors_factorise(seed, count, prior_std):
    """With ρ = 1/K and γ = 1, from the prior."""
    data = independent(clients(seed, count, features=3))
    method = BayesADMM(rho=1 / count, damping=1.0, prior_std=prior_std)
    model, state = one_round(method, *start(method, data), data, range(count))
    assert_is(model, *posterior_of_all(data, prior_std), 1e-9)


def test_at_rho_1_a_round_moves_the_sites_as_pvi_does():
    data, found = clients(3, 3), []
    for method in (BayesADMM(rho=1.0, damping=0.3), PVI(damping=0.3)):
        _, state = one_round(method, *start(method, data), data, range(3))
        found.append(factors("site", state))
    ours, theirs = found
    for name in theirs:
        torch.testing.assert_close(ours[name].shift["weight"], theirs[name].shift["weight"])
        torch.testing.assert_close(ours[name].precision["weight"], theirs[name].precision["weight"])


def test_at_rho_1_and_a_damping_of_1_over_k_it_is_pvi():
    data = clients(3, 3)
    ours, theirs = BayesADMM(damping=1 / 3), PVI()
    (one, held), (other, kept) = start(ours, data), start(theirs, data)
    for _ in range(5):
        one, held = one_round(ours, one, held, data, range(3))
        other, kept = one_round(theirs, other, kept, data, range(3))
        for name, tensor in other.items():
            torch.testing.assert_close(one[name], tensor)


@pytest.mark.parametrize("rho", [0.3, 1.0, 2.5])
def test_with_variances_that_are_fixed_and_alike_it_is_admm(rho):
    data, s = clients(4, 3, features=3), 4.0
    method = BayesADMM(rho=rho, damping=1.0, prior_std=s**-0.5)

    def frozen(local):
        torch.testing.assert_close(local.prior.precision["weight"], torch.full((3,), s).double())
        exact_fit(local)
        local.model.weight_log_var.data = torch.full((3,), -math.log(s), dtype=torch.float64)
        return {}

    model, state = start(method, data)
    z = torch.zeros(3, dtype=torch.float64)
    duals = [torch.zeros(3, dtype=torch.float64) for _ in data]
    for _ in range(7):
        model, state = one_round(method, model, state, data, range(3), inference=frozen)
        primals = []
        for k, (x, y) in enumerate(data):
            left = x.t() @ x / NOISE_VAR + rho * s * torch.eye(3, dtype=torch.float64)
            right = x.t() @ y / NOISE_VAR + rho * s * z - duals[k]
            primals.append(torch.linalg.solve(left, right))
            duals[k] = duals[k] + rho * s * (primals[k] - z)
        z = (rho * s * sum(primals) + sum(duals)) / (s + 3 * rho * s)
        torch.testing.assert_close(model["weight_mean"], z)


def test_a_weight_without_precision_stays_as_it_was():
    method = BayesADMM(rho=0.1, damping=1.0, prior_std=1.0)
    model = {"weight_mean": torch.zeros(2), "weight_log_var": torch.zeros(2)}
    for _ in range(6):
        narrow = Reply("a", 1.0, {"weight_mean": torch.ones(2), "weight_log_var": -torch.ones(2)})
        model, state = method.aggregate(Server(model, method.start(model)), [narrow])
    state = {k: -1e3 * t if k.startswith("site/a/precision") else t for k, t in state.items()}
    after, _ = method.aggregate(Server(model, state), [narrow])
    assert all(torch.equal(after[name], tensor) for name, tensor in model.items())
