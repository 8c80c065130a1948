"""FALD's chain has the mean and the variance of all data's posterior, clients of any sizes."""

import pytest
import torch
from torch import nn

from fedbary.inference import Training, local_method
from fedbary.methods import Local, Reply, Server
from fedbary.methods.fald import FALD

WEIGHTS, SIZES, DECAY = 300, (8, 16, 40), 0.3
CURVATURE = torch.linspace(0.5, 2.0, WEIGHTS)


class Means(nn.Module):
    """It answers its weights to every example: y_i ~ N(θ, 1/h) has a Gaussian posterior."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(WEIGHTS))

    def forward(self, x):
        return self.weight.expand(len(x), -1)


def energy(outputs, y):
    return (0.5 * CURVATURE * (outputs - y).square()).sum(1).mean()


def fitted(method, model, y, seed, lr=0.025, batch_size=64, part=1.0):
    training = Training(99, batch_size, lr=lr, momentum=0.9, weight_decay=DECAY)
    local = Local(Means(), torch.zeros(len(y), 1), y, energy, local_method("variational"),
                  training, 1.0, 1, seed, part=part)  # fmt: skip
    return method.fit(local, model, {})


@pytest.mark.in_turn
@pytest.mark.parametrize("temperature", [1.0, 0.25])
@pytest.mark.parametrize("local_steps", [1, 5])
def test_the_chain_has_the_posterior_s_mean_and_variance(local_steps, temperature):
    """Trap: noise that is not scaled with the gradients is a temperature of 1/3 here."""
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randn(n, WEIGHTS, generator=generator) + k for k, n in enumerate(SIZES)]
    method = FALD(networks=100, local_steps=local_steps, burn_in=90 // local_steps,
                  thinning=15 // local_steps, temperature=temperature, rate_factor=2.0)  # fmt: skip
    model, state = {"weight": torch.zeros(WEIGHTS)}, {}
    for server_round in range(1, 90 // local_steps + 40 * (15 // local_steps) + 1):
        replies = [
            Reply(str(k), float(len(y)),
                  fitted(method, model, y, 10 * server_round + k).reply)
            for k, y in enumerate(parts)
        ]  # fmt: skip
        model, state = method.aggregate(Server(model, state, server_round), replies)
    chain = method.predictive(model, state).members["weight"]
    assert len(chain) == 40
    precision = sum(SIZES) * (CURVATURE + DECAY)
    mean = CURVATURE * torch.cat(parts).mean(0) / (CURVATURE + DECAY)
    scaled = (chain - mean) * (precision / temperature).sqrt()
    assert scaled.mean().abs() < 0.08
    assert scaled.square().mean() == pytest.approx(1.0, rel=0.12)


@pytest.mark.parametrize(("asked", "part"), [(2, 0.5), (1, 0.25)])
def test_a_part_of_the_clients_samples_at_the_same_temperature(asked, part):
    """Trap: noise by the round's examples is n/n_round times too warm, 1.97 for two of four."""
    y = torch.randn(16, WEIGHTS, generator=torch.Generator().manual_seed(0))
    method = FALD(networks=100, local_steps=5, burn_in=18, thinning=3, rate_factor=2.0)
    model, state = {"weight": torch.zeros(WEIGHTS)}, {}
    for server_round in range(1, 18 + 40 * 3 + 1):
        here = [(server_round * asked + k) % 4 for k in range(asked)]
        replies = [
            Reply(str(k), 16.0, fitted(method, model, y, 10 * server_round + k, part=part).reply)
            for k in here
        ]
        model, state = method.aggregate(Server(model, state, server_round), replies)
    mean, precision = CURVATURE * y.mean(0) / (CURVATURE + DECAY), 64 * (CURVATURE + DECAY)
    scaled = (method.predictive(model, state).members["weight"] - mean) * precision.sqrt()
    assert scaled.square().mean() == pytest.approx(1.0, rel=0.12)


def test_every_client_takes_as_many_steps_whatever_its_size():
    model = {"weight": torch.zeros(WEIGHTS)}
    method = FALD(local_steps=7, temperature=0.0, rate_factor=2.0)
    y = torch.ones(1, WEIGHTS)
    few, many = (fitted(method, model, y.repeat(n, 1), 0, batch_size=4) for n in (3, 50))
    torch.testing.assert_close(few.reply["weight"], many.reply["weight"])
    step = 0.05 * (CURVATURE + DECAY)
    torch.testing.assert_close(
        few.reply["weight"], CURVATURE / (CURVATURE + DECAY) * (1 - (1 - step) ** 7)
    )
    at_start = float(0.5 * CURVATURE.sum())
    assert few.metrics["train_nll"] < at_start and many.metrics["train_nll"] < at_start
    one = fitted(FALD(local_steps=1, temperature=0.0), model, y.repeat(50, 1), 0, batch_size=4)
    assert one.metrics["train_nll"] == pytest.approx(at_start)


def test_the_last_networks_whose_turn_it_was_are_kept():
    method, state = FALD(networks=2, burn_in=1, thinning=2), {}
    for server_round in range(1, 9):
        reply = Reply("a", 1.0, {"w": torch.full((3,), float(server_round))})
        model, state = method.aggregate(Server({"w": torch.zeros(3)}, state, server_round), [reply])
        if server_round < 3:
            assert method.predictive(model, state).members == {}
    assert method.predictive(model, state).members["w"][:, 0].tolist() == [5.0, 7.0]
