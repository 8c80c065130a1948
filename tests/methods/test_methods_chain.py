"""SGHMC, SGLD and PredBayes are at temperature 1 in mini-batches, at their defaults."""

import math
from functools import cache

import pytest
import torch
from every_method import NIGHT
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedbary.inference import Training, local_method
from fedbary.inference._steps import Vectors
from fedbary.methods import Local, method_named
from fedbary.methods._chain import Chain, by_step, speed
from fedbary.methods._curvature import largest_curvature

DECAY = 0.01


class Weights(nn.Module):
    """As many logistic regressions of one feature each as there are weights."""

    def __init__(self, count):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(count))

    def forward(self, x):
        return x * self.weight


def cross_entropy(outputs, y):
    loss = nn.functional.binary_cross_entropy_with_logits(outputs, y, reduction="none")
    return loss.sum(1).mean()


def problem(examples, weights):
    """Features of stds ½ to 2, so that curvatures differ tenfold; the truth is 1."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(examples, weights, generator=generator) * torch.linspace(0.5, 2.0, weights)
    return x, (torch.rand(x.shape, generator=generator) < x.sigmoid()).float()


@cache
def moments(examples, weights):
    """The posteriors' means and variances, by quadrature."""
    x, y = problem(examples, weights)
    grid = torch.linspace(-3.0, 5.0, 321)[:, None]
    log = -0.5 * examples * DECAY * grid.square()
    for here, labels in zip(x, y, strict=True):
        log = log - nn.functional.softplus((1 - 2 * labels) * here * grid)
    p = log.softmax(0)
    mean = (p * grid).sum(0)
    return mean, (p * (grid - mean).square()).sum(0)


def local_of(x, y, batch_size, seed=0, epochs=2, lr=0.05, momentum=0.9, nll=cross_entropy):
    training = Training(epochs, batch_size, lr=lr, momentum=momentum, weight_decay=DECAY)
    inference, network = local_method("variational"), Weights(x.shape[1])
    return Local(network, x, y, nll, inference, training, 1.0, 1, seed)


@pytest.mark.in_turn
@pytest.mark.parametrize("name", ["SGHMC", "SGLD", "PredBayes"])
@pytest.mark.parametrize(
    ("examples", "weights", "batch_size", "networks"),
    [(1081, 200, 32, 6), (130, 120, 16, 6), (30, 30, 32, 30)] + [(1081, 20, 32, 60)] * NIGHT,
    ids=["many weights", "a small site", "whole batches"] + ["few weights"] * NIGHT,
)
def test_a_logistic_regression_s_posterior_in_mini_batches(
    name, examples, weights, batch_size, networks
):
    """Trap: at SGD's rate batches make 11 times the variance of 1080 examples; a cosine .07 of it.

    The last batch of 1081 examples is of 25, so that an example of it would weigh more.
    """
    x, y = problem(examples, weights)
    mean, var = moments(examples, weights)
    local = local_of(x, y, batch_size)
    method = method_named(name)(networks=networks)
    drawn = method.fit(local, local.state(), {}).reply["weight"]
    scaled = (drawn - mean) / var.sqrt()
    steep = scaled[:, weights // 2 :]
    assert scaled.square().mean() == pytest.approx(1.0, rel=0.2)
    assert steep.square().mean() == pytest.approx(1.0, rel=0.2)
    assert scaled.mean().abs() < 0.2


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.integers(2, 12), st.floats(0.01, 100.0))
def test_secants_find_the_largest_curvature(seed, weights, scale):
    """Of a linear model it is the largest eigenvalue of X'X / n; of a flat loss 0."""
    generator = torch.Generator().manual_seed(seed)
    x = scale * torch.randn(64, weights, generator=generator)
    x[:, 0] *= 3  # a gap, so that sixteen steps are enough
    network = nn.Linear(weights, 1, bias=False)
    theta = Vectors(network, 1.0).points
    before = theta.value.clone()

    def loss(x, y):
        return 0.5 * (network(x)[:, 0] - y).square().mean()

    batches = [(x, torch.ones(64))] * 16
    found = largest_curvature(theta, loss, batches, 64, generator)
    assert found == pytest.approx(float(torch.linalg.eigvalsh(x.T @ x / 64)[-1]), rel=0.02)
    assert torch.equal(theta.value, before)
    flat = largest_curvature(theta, lambda x, y: 0 * loss(x, y), batches, 64, generator)
    assert flat == 0


@given(st.integers(1, 512), st.integers(1, 10**5), st.integers(1, 10**6), st.floats(0.05, 1.0))
def test_the_more_examples_a_batch_lacks_the_slower_a_chain_goes(
    batch, examples, weights, friction
):
    """At most by what a step or a batch allows, and never slower than an epoch and a half."""
    found = speed(batch, examples, weights, friction)
    assert 0 < found <= by_step(friction) <= 1
    assert found <= speed(batch, max(1, examples // 2), weights, friction)
    assert found <= speed(batch, examples, max(1, weights // 2), friction)
    assert found >= min(by_step(friction), 2 * min(batch, examples) / (3 * examples))


@pytest.mark.parametrize("lr", [0.05, 1e-4] if NIGHT else [0.05])
def test_no_weight_moves_faster_than_by_sgd_and_a_flat_loss_lets_it_diffuse(lr):
    """Of a loss without slope a chain is a random walk of variance 2 (η/α) / n a step."""
    x, y = torch.zeros(2000, 2000), torch.zeros(2000, 2000)
    local = local_of(x, y, 500, lr=lr)
    local.training.__dict__["weight_decay"] = 0.0
    chain = Chain(local, 1.0, 1.0)
    drawn = chain.samples(2, 50)
    expected = 2 * (lr / 0.1) / 2000
    assert float((drawn[1] - drawn[0]).var()) == pytest.approx(50 * expected, rel=0.15)


def test_without_a_temperature_a_chain_ends_at_the_mode():
    x, y = problem(200, 5)
    local = local_of(x, y, 200, epochs=200)
    drawn = Chain(local, 0.1, 0.0).samples(2, 100)
    chances = (x * drawn[-1]).sigmoid()
    slope = ((chances - y) * x).mean(0) + DECAY * drawn[-1]
    assert slope.abs().max() < 1e-4
    assert math.isfinite(float(drawn.sum()))


def test_more_weights_than_examples_walk_no_farther_than_a_quarter_of_their_size():
    """Trap: at chance a network has hardly any curvature, and a chain at SGD's rate ruins it."""
    x, y = torch.zeros(64, 2000), torch.zeros(64, 2000)
    local = local_of(x, y, 16, epochs=1)
    local.training.__dict__["weight_decay"] = 0.0
    with torch.no_grad():
        local.model.weight.fill_(0.8)
    moved = Chain(local, 0.1, 1.0).samples(2, 50)[-1] - 0.8
    assert float(moved.square().mean().sqrt()) == pytest.approx(0.2, rel=0.15)
