"""Inference that is that of all data: unlike sizes, correlated features, clients that are away."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from linear_gaussian import (
    NOISE_VAR,
    Linear,
    assert_is,
    clients,
    exact_fit,
    independent,
    posterior_of_all,
    rounds,
)
from scipy import optimize, stats
from torch.nn.functional import softplus

from fedbary.gaussian import Factor
from fedbary.inference import Training
from fedbary.methods import Local, Reply, Server
from fedbary.methods.barycentre import Barycentre
from fedbary.methods.bayesadmm import BayesADMM
from fedbary.methods.fedpop import FedPop
from fedbary.methods.pvi import PVI

SOME = settings(deadline=None, max_examples=8)


def by_share(data, turn, prior_std):
    """Return RKLB's aggregate of exact clients, of those in turn, with kl_weight=share."""
    examples, model, replies = sum(len(y) for _, y in data), Linear(4).state_dict(), []
    for k in turn:
        network, size = Linear(4), len(data[k][1])
        prior = Factor.normal(prior_std, {"weight": network.weight_mean})
        training = Training(kl_weight=size / examples)
        exact_fit(Local(network, *data[k], None, None, training, prior, 1, 0))
        replies.append(Reply(str(k), size, network.state_dict()))
    return Barycentre("RKLB").aggregate(Server(model, {}), replies)[0]


@SOME
@given(st.integers(0, 10**6), st.integers(1, 7), st.floats(0.2, 3.0), st.data())
def test_a_prior_by_share_counts_once_in_one_round_of_unlike_clients(seed, count, std, more):
    """Exact where posteriors factorise; of some, their likelihood has the weight of all examples.

    If features are correlated, the variances are exact still.
    """
    data = clients(seed, count)
    assert_is(
        {"weight_mean": torch.zeros(4).double(), **_log_var(by_share(data, range(count), std))},
        torch.zeros(4).double(), posterior_of_all(data, std)[1], 1e-9,
    )  # fmt: skip
    data = independent(data)
    assert_is(by_share(data, range(count), std), *posterior_of_all(data, std), 1e-9)
    turn = sorted(more.draw(st.sets(st.integers(0, count - 1), min_size=1)))
    there = [data[k] for k in turn]
    part = sum(len(y) for _, y in there) / sum(len(y) for _, y in data)
    assert_is(by_share(data, turn, std), *posterior_of_all(there, std, part), 1e-9)


def _log_var(state):
    return {"weight_log_var": state["weight_log_var"]}


@pytest.mark.parametrize("method", [PVI(prior_std=2.0), BayesADMM(damping=0.2, prior_std=2.0)])
def test_clients_of_unlike_sizes_that_leave_and_return_end_at_the_posterior_of_all(method):
    """Of 5 to 50 correlated examples, at a power of the likelihood; at the end one is away."""
    data = [
        (x[: 5 + 15 * k], y[: 5 + 15 * k])
        for k, (x, y) in enumerate(clients(4, 4, 3, correlation=0.6))
    ]
    away = [[k for k in range(4) if k != number % 3] for number in range(60)]
    model, _ = rounds(method, data, [range(4)] * 5 + [range(3)] * 10 + away, kl_weight=0.3)
    assert_is(model, *posterior_of_all(data, 2.0, 0.3), 2e-3)


NODES, WEIGHTS = (torch.from_numpy(a) for a in np.polynomial.hermite_e.hermegauss(15))


def logistic_loss(x, y, mean, log_var):
    """Return E_q of the NLL of logistic regression, by quadrature over each example's logit."""
    logit = (x @ mean)[:, None] + (x.square() @ log_var.exp()).sqrt()[:, None] * NODES
    return (softplus(-(2 * y - 1)[:, None] * logit) @ (WEIGHTS / WEIGHTS.sum())).sum()


def variational_fit(local):
    """Set argmin E_q[NLL] + KL(q ‖ prior) of a logistic regression, from where the model is."""
    shift, precision = local.prior.shift["weight"], local.prior.precision["weight"]
    parameters = list(local.model.parameters())

    def loss():
        mean, log_var = parameters
        cost = logistic_loss(local.x, local.y, mean, log_var) - mean @ shift
        return cost + 0.5 * (precision * (mean.square() + log_var.exp()) - log_var).sum()

    descent = torch.optim.LBFGS(
        parameters, max_iter=60, tolerance_grad=1e-9, tolerance_change=1e-13,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    def closure():
        descent.zero_grad()
        found = loss()
        found.backward()
        return found

    descent.step(closure)
    return {}


def test_logistic_regression_ends_at_the_variational_posterior_of_all_data():
    """A fixed point is one of variational inference on all data, also where no site is Gaussian."""
    generator = torch.Generator().manual_seed(0)
    data = []
    for k in range(3):
        x = torch.randn(6 + 6 * k, 2, generator=generator, dtype=torch.float64)
        x[:, 1] += x[:, 0]
        chance = torch.sigmoid(x @ torch.tensor([1.0, -2.0]).double() + 0.5 * k)
        data.append((x, torch.bernoulli(chance, generator=generator)))
    model, _ = rounds(PVI(), data, 8 * [[0], [1], [2]], inference=variational_fit)
    whole = Linear(2)
    x, y = (torch.cat(part) for part in zip(*data, strict=True))
    prior = Factor.normal(1.0, {"weight": torch.zeros(2).double()})
    variational_fit(Local(whole, x, y, None, None, Training(), prior, 1, 0))
    assert_is(model, whole.weight_mean.detach(), whole.weight_log_var.detach().exp(), 1e-3)


def test_fedpop_ends_at_the_maximum_of_the_marginal_likelihood():
    """Exact chains of 12 unlike clients, some away for a while: trunk, prior's mean and variance.

    y = θ_k + φ x + noise, θ_k ~ N(m, v), so y_k ~ N(m + φ x_k, σ² I + v 1 1ᵀ).
    """
    draw = np.random.default_rng(0)
    data = []
    for k in range(12):
        x = draw.normal(size=3 + 2 * k)
        data.append((x, draw.normal(1.0, 0.8) - 0.7 * x + draw.normal(0, NOISE_VAR**0.5, len(x))))

    def loss(values):
        slope, mean, log_var = values
        return -sum(
            stats.multivariate_normal(
                mean + slope * x, NOISE_VAR * np.eye(len(x)) + math.exp(log_var)
            ).logpdf(y)
            for x, y in data
        )

    wanted = optimize.minimize(loss, np.zeros(3), tol=1e-9).x
    method = FedPop(server_lr=0.03)
    model = {n: torch.zeros(1).double() for n in ("head_mean", "head_log_var", "slope")}
    state = method.start(model)
    for number in range(200):
        replies = []
        for k, (x, y) in enumerate(data):
            if number < 60 and (k + number) % 4 == 0:
                continue
            slope, mean, log_var = (float(model[n]) for n in ("slope", "head_mean", "head_log_var"))
            var = 1 / (math.exp(-log_var) + len(x) / NOISE_VAR)
            gap = var * float(np.sum(y - slope * x - mean)) / NOISE_VAR
            gradient = float(np.mean(x * (mean + gap + slope * x - y))) / NOISE_VAR
            replies.append(
                Reply(str(k), len(x), {
                    "head/gap/head": torch.tensor([gap]).double(),
                    "head/square/head": torch.tensor([var + gap**2]).double(),
                    "gradient/slope": torch.tensor([gradient]).double(),
                })
            )  # fmt: skip
        model, state = method.aggregate(Server(model, state), replies)
    found = [float(model[n]) for n in ("slope", "head_mean", "head_log_var")]
    np.testing.assert_allclose(found, wanted, atol=2e-3)
