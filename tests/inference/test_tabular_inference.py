"""Local and federated inference of classifiers of rows, against optima found by quadrature."""

import functools
import math
import operator

import numpy as np
import pytest
import torch
from every_method import NIGHT
from known_posteriors import OF_ANY_NETWORK, SCALED
from scipy.optimize import minimize
from torch import Generator

from fedbary import Posterior, predict
from fedbary.aggregation import aggregate
from fedbary.data.deal import Deal, client_shard, evaluation_data
from fedbary.data.standardise import Standardiser, Sums
from fedbary.data.tables import load_labelled
from fedbary.inference import Local, Training, local_method
from fedbary.models import build
from fedbary.scores.tables import score
from fedbary.seeds import derive_seed
from fedbary.tasks.tables import class_weights, weighted_cross_entropy


def one_feature(n=300, bias=-1.0):
    """Rows of one feature whose class follows a logistic model: (n, 1) and (n,)."""
    generator = Generator().manual_seed(3)
    x = torch.randn(n, 1, generator=generator)
    chance = torch.sigmoid(1.5 * x[:, 0] + bias)
    return x, (torch.rand(n, generator=generator) < chance).long()


def mean_field_optimum(x, y, weights, prior_std=1.0):
    """Return the NELBO's minimiser by quadrature: mean and variance of each weight, bias gap.

    Only the gap of the two classes' logits counts: it is N(m x + c, 2 v x²) with opposite means
    ∓m/2 and equal variances v, by symmetry of the prior. Gauss-Hermite in one dimension.
    """
    nodes, masses = np.polynomial.hermite_e.hermegauss(60)
    masses = masses / masses.sum()
    x, sign = x[:, 0].double().numpy(), 2 * y.numpy() - 1
    w = weights.double().numpy()[y.numpy()]

    def nelbo(parameters):
        m, log_var, c = parameters
        var = math.exp(log_var)
        logits = m * x[:, None] + c + np.sqrt(2 * var) * np.abs(x)[:, None] * nodes
        nll = (w * (np.logaddexp(0, -sign[:, None] * logits) @ masses)).sum()
        ratio = var / prior_std**2
        return nll + ratio - 1 - math.log(ratio) + (m / 2 / prior_std) ** 2

    m, log_var, c = minimize(nelbo, [0.0, -3.0, 0.0], method="BFGS", options={"gtol": 1e-6}).x
    return m, math.exp(log_var), c


@functools.cache
def fitted(name, scheme):
    x, y = one_feature()
    weights = class_weights(scheme, torch.bincount(y))
    model = build("linear", (1,), 2, 0, 1, -5.0)
    for lr, log_var_lr in ((0.3, 0.03), (0.01, 0.005), (0.001, 0.001), (0.0002, 0.0005)):
        training = Training(epochs=800, batch_size=300, lr=lr, log_var_lr=log_var_lr, kl_weight=1.0)
        local_method(name)(
            Local(model, x, y, nll=weighted_cross_entropy(weights), training=training)
        )
    return model


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["none", "balanced"] if NIGHT else ["balanced"])
@pytest.mark.parametrize("name", SCALED)
def test_every_local_method_finds_the_mean_field_optimum(name, scheme):
    x, y = one_feature()
    m, var, c = mean_field_optimum(x, y, class_weights(scheme, torch.bincount(y)))
    posterior = Posterior.from_state_dict(fitted(name, scheme).state_dict())
    mean = posterior.mean["output.weight"].detach()[:, 0].double()
    log_var = posterior.log_var["output.weight"].detach()[:, 0].double()
    bias = posterior.mean["output.bias"].detach().double()
    std = math.sqrt(var)
    assert float(mean[1] - mean[0]) == pytest.approx(m, abs=0.2 * std)
    assert float(mean.sum()) == pytest.approx(0, abs=0.3 * std)
    assert float(bias[1] - bias[0]) == pytest.approx(c, abs=0.2 * std)
    np.testing.assert_allclose(log_var, math.log(var), atol=0.15)


def test_the_optimum_is_near_the_exact_posterior_of_the_logit_s_slope():
    """Exact by a sum over a grid: the prior of the two weights' gap is N(0, 2)."""
    x, y = one_feature()
    m, _, c = mean_field_optimum(x, y, torch.ones(2))
    slopes = np.linspace(-2, 5, 4001)
    logits = slopes[:, None] * x[:, 0].double().numpy() + c
    log_density = -np.logaddexp(0, (1 - 2 * y.numpy()) * logits).sum(1) - slopes**2 / 4
    density = np.exp(log_density - log_density.max())
    density /= density.sum()
    mean = density @ slopes
    std = math.sqrt(density @ (slopes - mean) ** 2)
    assert m == pytest.approx(mean, abs=0.1 * std)


def federated(rule, model, inference, clients, rounds, tmp_path, scheme="none"):
    """Run rounds by hand on breast cancer, nothing but messages' content shared; score the test."""
    table, deal = load_labelled("breast_cancer", tmp_path), Deal(split=0, holdout=0.0)
    shards = [client_shard(table, deal, clients, client) for client in range(clients)]

    def asked(shift):
        return functools.reduce(operator.add, (Sums.of(shard.x, shift) for shard in shards))

    scale = Standardiser.from_sums(asked(asked(torch.zeros(30)).mean))
    counts = sum(torch.bincount(shard.y, minlength=2) for shard in shards)
    nll = weighted_cross_entropy(class_weights(scheme, counts))
    network = build(model, (30,), 2, 0, 1, -5.0, {"hidden_units": 20})
    training = Training(epochs=5, batch_size=16, lr=0.02, log_var_lr=0.01, kl_weight=0.1)
    received = network.state_dict()
    for server_round in range(rounds):
        replies = []
        for client, shard in enumerate(shards):
            local = build(model, (30,), 2, 0, 1, -5.0, {"hidden_units": 20})
            local.load_state_dict(received)
            seed = derive_seed(0, "train", client, server_round)
            x = scale.features(shard.x)
            local_method(inference)(Local(local, x, shard.y, nll=nll, training=training, seed=seed))
            replies.append(Posterior.from_state_dict(local.state_dict()))
        merged = aggregate(rule, replies, [len(shard.y) for shard in shards])
        received = merged.state_dict()
    x, y = evaluation_data(table, deal)
    network.load_state_dict(received)
    found = predict(network, scale.features(x), 100, seed=0)
    return score(found.probs, y, specificity=0.9)


@pytest.mark.in_turn
@pytest.mark.slow
@pytest.mark.parametrize("model", ["linear", "mlp"])
@pytest.mark.parametrize("inference", OF_ANY_NETWORK)
def test_a_federation_tells_malignant_from_benign(model, inference, tmp_path):
    found = federated("RKLB", model, inference, clients=5, rounds=4, tmp_path=tmp_path)
    assert found["accuracy"] > 0.94 and found["auroc"] > 0.98
    assert found["sensitivity"] > 0.95 and found["nll"] < 0.25


@pytest.mark.slow
def test_a_federation_with_weights_trains_too(tmp_path):
    found = federated("WB", "linear", "variational", 5, 4, tmp_path, scheme="balanced")
    assert found["accuracy"] > 0.94 and found["auroc"] > 0.98
