"""FedLAW: no epochs is FedAvg; weights and shrinkage are the minimum on the server's examples."""

import pytest
import torch
from every_method import NIGHT, night
from torch import nn

from fedbary.aggregation import aggregate
from fedbary.errors import SettingError
from fedbary.gaussian import Posterior
from fedbary.methods import Bench, Reply, Server
from fedbary.methods._method import weighted_mean
from fedbary.methods.fedlaw import FedLAW
from fedbary.variational.layers import VariationalLinear


def squares(outputs, targets):
    return (outputs[:, 0] - targets).square().mean()


def linear(seed, count=300, features=3):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, features, generator=generator)
    truth = torch.randn(features, generator=generator)
    return x, x @ truth, truth


def replies(truth, noises, sizes):
    generator = torch.Generator().manual_seed(9)
    return [
        Reply(str(k), size, {"weight": (truth + s * torch.randn(3, generator=generator))[None]})
        for k, (s, size) in enumerate(zip(noises, sizes, strict=True))
    ]


def server(x, y, truth):
    network = nn.Linear(3, 1, bias=False)
    return Server({"weight": torch.zeros(1, 3)}, {}, 1, 5, Bench(network, x, y, squares))


def test_without_epochs_it_is_fedavg():
    x, y, truth = linear(0)
    sent = replies(truth, [0.1, 1.0, 2.0], [5, 1, 9])
    model, _ = FedLAW(server_epochs=0).aggregate(server(x, y, truth), sent)
    torch.testing.assert_close(model["weight"], weighted_mean(sent, ["weight"])["weight"])


def test_it_finds_the_best_weights_and_shrinkage():
    """The least squares over conv{θ_k} times a scale, by a fine search."""
    x, y, truth = linear(1)
    sent = [
        Reply("far", 8.0, {"weight": 2.0 * truth[None] + 1.0}),
        Reply("twice", 1.0, {"weight": 2.0 * truth[None]}),
    ]
    method = FedLAW(server_epochs=200, server_lr=0.05)
    model, _ = method.aggregate(server(x, y, truth), sent)
    found = squares(x @ model["weight"].t(), y)
    far, twice = (reply.tensors["weight"] for reply in sent)
    best = min(
        squares(x @ (scale * (w * far + (1 - w) * twice)).t(), y)
        for w in torch.linspace(0, 1, 41)
        for scale in torch.linspace(0.3, 1.2, 91)
    )
    fedavg = squares(x @ weighted_mean(sent, ["weight"])["weight"].t(), y)
    assert found < best + 0.01 < 0.1 * fedavg


def test_the_steps_are_adams_with_the_paper_s_betas_on_logits_and_shrinkage():
    """Three steps on all the server's examples at once, against the recursion written out."""
    x, y, truth = linear(6)
    given = replies(truth, [0.3, 1.0, 2.0], [5, 1, 9])
    theta = torch.stack([reply.tensors["weight"] for reply in given])
    at = torch.cat([(torch.tensor([5.0, 1.0, 9.0]) / 15).log(), torch.zeros(1)]).requires_grad_()
    first, second, rate = torch.zeros(4), torch.zeros(4), 0.05
    for step in (1, 2, 3):
        weight = at[3].exp() * torch.tensordot(at[:3].softmax(0), theta, 1)
        (slope,) = torch.autograd.grad(squares(x @ weight.t(), y), at)
        first = 0.5 * first + 0.5 * slope
        second = 0.999 * second + 0.001 * slope.square()
        move = first / (1 - 0.5**step) / ((second / (1 - 0.999**step)).sqrt() + 1e-8)
        at = (at - rate * move).detach().requires_grad_()
    method = FedLAW(server_epochs=3, server_lr=rate, server_batch_size=len(x))
    model, _ = method.aggregate(server(x, y, truth), given)
    wanted = at[3].exp() * torch.tensordot(at[:3].softmax(0), theta, 1)
    torch.testing.assert_close(model["weight"], wanted.detach(), rtol=1e-4, atol=1e-5)


def test_a_client_of_no_use_loses_its_say_and_buffers_are_not_shrunk():
    x, y, truth = linear(2)

    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1, 3))
            self.register_buffer("running_mean", torch.zeros(2))
            self.register_buffer("steps", torch.tensor(0))

        def forward(self, x):
            return x @ self.weight.t()

    def sent(weight, moment):
        return {
            "weight": weight[None], "running_mean": torch.full((2,), moment),
            "steps": torch.tensor(4),
        }  # fmt: skip

    model = Shifted().state_dict()
    bench = Bench(Shifted(), x, y, squares)
    given = [Reply("good", 1.0, sent(truth, 1.0)), Reply("bad", 9.0, sent(-truth, 0.0))]
    method = FedLAW(server_epochs=100, server_lr=0.05)
    found, state = method.aggregate(Server(model, {}, 1, 0, bench), given)
    assert state == {} and found["steps"] == 4
    assert found["running_mean"].min() > 0.9  # the weight of the good one; FedAvg's is 0.1
    torch.testing.assert_close(found["weight"][0], truth, atol=0.1, rtol=0)


def test_the_bench_s_network_is_left_as_it_was():
    x, y, truth = linear(3)
    here = server(x, y, truth)
    here.bench.network.train()
    before = {name: t.clone() for name, t in here.bench.network.state_dict().items()}
    threads, randomness = torch.get_num_threads(), torch.get_rng_state()
    FedLAW().aggregate(here, replies(truth, [0.1, 1.0], [1, 1]))
    after = here.bench.network.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert here.bench.network.training and torch.get_num_threads() == threads
    assert torch.equal(randomness, torch.get_rng_state())


@night  # by day the gradient through a rule, on points
@pytest.mark.parametrize("rule", ["RKLB", "WB", "FKLB", "GAA"] if NIGHT else ["FKLB"])
def test_of_gaussians_the_weights_are_learned_through_any_rule(rule):
    """The aggregate is the rule's at the learned weights, its means shrunk; the useless is left."""
    x, y, truth = linear(4)
    network = nn.Sequential(VariationalLinear(3, 1))
    start = network.state_dict()

    def sent(mean, log_var):
        weight = mean[None].clone()
        return {
            "0.weight_mean": weight, "0.weight_log_var": torch.full_like(weight, log_var),
            "0.bias": torch.zeros(1),
        }  # fmt: skip

    given = [
        Reply("good", 1.0, sent(truth, -6.0)),
        Reply("bad", 4.0, sent(-2 * truth.flip(0) - 1, -8.0)),
    ]
    method = FedLAW(rule=rule, server_epochs=120, server_lr=0.05)
    found, _ = method.aggregate(Server(start, {}, 1, 0, Bench(network, x, y, squares)), given)
    posteriors = [Posterior.from_state_dict(reply.tensors) for reply in given]
    plain, _ = FedLAW(rule=rule, server_epochs=0).aggregate(Server(start, {}), given)
    assert squares(x @ found["0.weight_mean"].t(), y) < 0.05 * squares(x @ truth[:, None], 0 * y)
    assert squares(x @ plain["0.weight_mean"].t(), y) > squares(x @ truth[:, None], 0 * y)

    def away(q):
        """How far a posterior, its means scaled to fit, lies from what was found."""
        mean, wanted = q.mean["0.weight"], found["0.weight_mean"]
        scaled = mean * (mean * wanted).sum() / mean.square().sum()
        gap = (scaled - wanted).abs().max()
        return float(gap + (q.log_var["0.weight"] - found["0.weight_log_var"]).abs().max())

    choices = torch.linspace(-12, 12, 4001).sigmoid().tolist()
    assert min(away(aggregate(rule, posteriors, [w, 1 - w])) for w in choices) < 0.01


@pytest.mark.parametrize("rule", ["Median", "MultiKrum", "RKLD"])
def test_a_rule_without_weights_is_refused(rule):
    with pytest.raises(SettingError, match="rule"):
        FedLAW(rule=rule)
