"""The truths of FedPop: a chain whose posterior is known, gradients, the prior's optimum."""

import math

import pytest
import torch
from small_regressions import EXAMPLES, NOISE_VAR, data, local, state
from torch import nn

from fedbary.inference import Training
from fedbary.methods import Local, Reply, Server
from fedbary.methods.fedpop import FedPop
from fedbary.settings.config import resolve


class Sum(nn.Module):
    """y = θ + φ x, with θ ~ N(mean, exp(log_var)) the head and φ the trunk, in float64."""

    def __init__(self):
        super().__init__()
        self.head_mean = nn.Parameter(torch.tensor([0.4], dtype=torch.float64))
        self.head_log_var = nn.Parameter(torch.tensor([-1.0], dtype=torch.float64))
        self.slope = nn.Parameter(torch.tensor([0.7], dtype=torch.float64))

    def forward(self, x):
        return self.head_mean + self.slope * x


@pytest.fixture(scope="module")
def popped():
    """A long chain of whole batches: its reply, what it keeps, and the rate."""
    lr = 0.03
    method = FedPop(burn_in=0.02, heads=500)
    return method.fit(local(Sum(), lr / 10, epochs=8000), state(Sum()), {}), lr


def test_the_chain_s_moments_are_the_posterior_s(popped):
    """Of Langevin steps of rate η on a Gaussian of variance v: mean as it, v / (1 − η/(2 n v))."""
    fitted, lr = popped
    x, y = data()
    precision = math.e + EXAMPLES / NOISE_VAR
    mean = (0.4 * math.e + float((y - 0.7 * x).sum()) / NOISE_VAR) / precision
    rate = lr / (1 + lr * math.e / EXAMPLES)
    var = 1 / precision / (1 - rate * precision / EXAMPLES / 2)
    assert float(fitted.reply["head/gap/head"]) == pytest.approx(mean - 0.4, abs=0.02)
    spread = fitted.reply["head/square/head"] - fitted.reply["head/gap/head"].square()
    assert float(spread) == pytest.approx(var, rel=0.1)
    samples = fitted.kept["sample/head"]
    assert float(samples.var()) == pytest.approx(var, rel=0.25)


class Heads(nn.Module):
    """y_ij ~ N(θ_j, 1/h_j) with curvatures h_j from 1/4 to 1, and a trunk that adds nothing."""

    def __init__(self):
        super().__init__()
        self.head_mean, self.head_log_var = (nn.Parameter(torch.zeros(200)) for _ in range(2))
        self.trunk = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return (self.head_mean + 0 * self.trunk).expand(len(x), -1)


@pytest.mark.parametrize(("examples", "batch_size", "rounds"), [(1080, 32, 5), (130, 16, 9)])
def test_over_rounds_in_mini_batches_a_chain_is_at_temperature_one(examples, batch_size, rounds):
    """Trap: at SGD's rate it was 4.3 times the posterior's variance, and EM set the prior by it."""
    curvature = torch.linspace(0.25, 1.0, 200)
    y = torch.randn(examples, 200, generator=torch.Generator().manual_seed(0)) / curvature.sqrt()

    def nll(outputs, y):
        return (0.5 * curvature * (outputs - y).square()).sum(1).mean()

    method, kept, drawn = FedPop(heads=3), {}, []
    for turn in range(rounds):
        training = Training(5, batch_size, lr=0.02, momentum=0.9)
        job = Local(Heads(), torch.zeros(examples, 1), y, nll, None, training, 1.0, 1, turn)
        kept = method.fit(job, job.state(), kept).kept
        drawn.append(kept["sample/head"])
    precision = examples * curvature + 1
    scaled = (torch.cat(drawn[1:]) - examples * curvature * y.mean(0) / precision) * precision**0.5
    assert scaled.square().mean() == pytest.approx(1.0, rel=0.2)
    assert scaled[:, 100:].square().mean() == pytest.approx(1.0, rel=0.2)


def test_the_trunk_s_gradient_is_that_of_the_marginal_likelihood(popped):
    """Fisher's identity: y ~ N(0.4 + φ x, σ² I + v 1 1ᵀ) once the head is integrated out."""
    x, y = data()
    slope = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    covariance = NOISE_VAR * torch.eye(EXAMPLES) + math.exp(-1.0)
    gaussian = torch.distributions.MultivariateNormal(0.4 + slope * x, covariance.double())
    (-gaussian.log_prob(y) / EXAMPLES).backward()
    found = float(popped[0].reply["gradient/slope"])
    assert found == pytest.approx(float(slope.grad), abs=5e-3)


def test_the_prior_becomes_the_optimum_given_the_clients_moments():
    """It maximises Σ_k E[log N(θ_k; m, v)]: the mean and the variance of the clients' mixture."""
    heads = [torch.tensor([0.1, 0.9]), torch.tensor([-1.0, 0.4]), torch.tensor([2.0, 2.2])]
    model, method = state(Sum()), FedPop()
    replies = []
    for k, samples in enumerate(heads):
        gap = samples.double() - model["head_mean"]
        moments = {
            "head/gap/head": gap.mean()[None], "head/square/head": gap.square().mean()[None],
            "gradient/slope": torch.zeros(1, dtype=torch.float64),
        }  # fmt: skip
        replies.append(Reply(str(k), 1.0 + k, moments))
    after, _ = method.aggregate(Server(model, method.start(model)), replies)
    every = torch.cat(heads).double()
    assert float(after["head_mean"]) == pytest.approx(float(every.mean()))
    assert float(after["head_log_var"].exp()) == pytest.approx(float(every.var(correction=0)))
    assert torch.equal(after["slope"], model["slope"])


def test_clients_are_sent_the_paper_s_prior_until_a_round_has_made_one():
    model, method = state(Sum()), FedPop()
    first = method.send(Server(model, method.start(model)), "0")
    assert float(first["head_log_var"]) == 0.0 and float(model["head_log_var"]) == -1.0
    assert all(first[name].equal(model[name]) for name in ("head_mean", "slope"))
    reply = method.fit(local(Sum(), 0.01), first, {}).reply
    after, held = method.aggregate(Server(model, method.start(model)), [Reply("0", 1.0, reply)])
    later = method.send(Server(after, held), "0")
    assert later["head_log_var"].equal(after["head_log_var"])
    chosen = resolve({"method": "FedPop"})
    assert (chosen.kl_weight, chosen.init_log_var) == (method.kl_weight, method.init_log_var)


def test_the_chain_s_temperature_is_the_method_s_own_wherever_it_runs():
    def squares(method, kl_weight):
        client = local(Sum(), 0.01, epochs=20, kl_weight=kl_weight)
        return float(method.fit(client, state(Sum()), {}).reply["head/square/head"])

    assert squares(FedPop(), 0.001) == squares(FedPop(), 1.0)
    assert squares(FedPop(kl_weight=0.1), 1.0) != squares(FedPop(), 1.0)


def test_a_chain_goes_on_where_the_client_left_it():
    method, sent = FedPop(), state(Sum())
    first = method.fit(local(Sum(), 0.01), sent, {})
    still = method.fit(local(Sum(), 1e-12), sent, first.kept)
    torch.testing.assert_close(still.kept["head_mean"], first.kept["head_mean"], atol=1e-4, rtol=0)
    assert abs(float(first.kept["head_mean"]) - 0.4) > 1e-2
    own = method.personal(local(Sum(), 0.01), sent, first.kept)
    assert own.members["head_mean"].shape == (5, 1) and own.members["slope"].shape == (5, 1)
    assert method.personal(local(Sum(), 0.01), sent, {}) is None
