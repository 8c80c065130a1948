"""Laplace of the last layer: the Hessian is exact, a round of RKLB the posterior of all data."""

import pytest
import torch
from last_layers import local
from linear_gaussian import NOISE_VAR, clients
from torch import nn

from fedbary.aggregation.covariance import packed, unpacked
from fedbary.errors import SettingError
from fedbary.methods import Reply, Server
from fedbary.methods._kronecker import last_layer
from fedbary.methods.lastlayerlaplace import (
    COVARIANCE,
    CURVATURE,
    DRAWS,
    LastLayerLaplace,
    hessian,
)
from fedbary.variational.regressor import Regressor, gaussian_nll


def by_autograd(network, x, y, nll):
    """The Hessian of the mean loss by all the network's parameters, and where each lies."""
    names, values = zip(*network.named_parameters(), strict=True)

    def loss(*weights):
        return nll(
            torch.func.functional_call(network, dict(zip(names, weights, strict=True)), x), y
        )

    blocks = torch.autograd.functional.hessian(loss, values)
    sizes = [value.numel() for value in values]
    rows = [
        torch.cat([b.reshape(n, m) for b, m in zip(row, sizes, strict=True)], 1)
        for row, n in zip(blocks, sizes, strict=True)
    ]
    return torch.cat(rows), names, sizes


def digits(count=40):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(count, 1, 6, 6, generator=generator)
    return x, torch.randint(0, 3, (count,), generator=generator)


@pytest.mark.parametrize("kind", ["classes", "numbers", "heteroscedastic"])
@pytest.mark.parametrize("at_once", [2**24, 1])
def test_the_hessian_is_that_of_the_loss(kind, at_once, monkeypatch):
    monkeypatch.setattr("fedbary.methods.lastlayerlaplace.GRADIENTS_AT_ONCE", at_once)
    torch.manual_seed(0)
    if kind == "classes":
        x, y = digits(7)
        nll = nn.functional.cross_entropy
        network = (
            nn.Sequential(
                nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Dropout(0.5), nn.ReLU(), nn.Linear(32, 3)
            )
            .to(memory_format=torch.channels_last)
            .eval()
        )
    else:
        x, y, nll = torch.randn(7, 3), torch.randn(7), gaussian_nll
        network = Regressor(3, 4, noise="learned" if kind == "numbers" else kind)
        network.reset(-3.0, 0)
    found = hessian(local(network, x, y, nll))
    whole, names, sizes = by_autograd(network, x, y, nll)
    places = torch.cat([torch.full((n,), i) for i, n in enumerate(sizes)])
    own = [names.index(name) for name in last_layer(dict(network.state_dict()))]
    at = torch.cat([(places == i).nonzero()[:, 0] for i in own])
    torch.testing.assert_close(found, whole[at][:, at], rtol=1e-4, atol=1e-6)


def linear_replies(data, prior_precision):
    """What clients with the prior's share as weight decay send, in closed form."""
    total, replies = sum(len(x) for x, _ in data), []
    for k, (x, y) in enumerate(data):
        network = nn.Linear(x.shape[1], 1, bias=False).double()
        share = prior_precision * len(x) / total

        def exact(local, share=share):
            x, y = local.x, local.y
            precision = x.t() @ x / NOISE_VAR + share * torch.eye(x.shape[1], dtype=x.dtype)
            local.model.weight.data = torch.linalg.solve(precision, x.t() @ y / NOISE_VAR)[None]
            return {}

        def nll(outputs, targets):
            return (outputs[:, 0] - targets).square().mean() / 2 / NOISE_VAR

        method = LastLayerLaplace(prior_precision=prior_precision)
        received = {"weight": torch.zeros_like(network.weight.data)}
        fitted = method.fit(local(network, x, y, nll, exact), received, {})
        replies.append(Reply(str(k), float(len(x)), fitted.reply))
    return replies


@pytest.mark.parametrize("prior_precision", [0.1, 30.0])
def test_a_round_is_the_posterior_of_all_data_whatever_the_correlations(prior_precision):
    data = clients(4, 5, features=6, correlation=0.9)
    replies = linear_replies(data, prior_precision)
    server = Server({"weight": torch.zeros(1, 6, dtype=torch.float64)}, {}, seed=3)
    method = LastLayerLaplace(prior_precision=prior_precision, networks=20_000)
    model, state = method.aggregate(server, replies)
    x, y = torch.cat([x for x, _ in data]), torch.cat([y for _, y in data])
    precision = x.t() @ x / NOISE_VAR + prior_precision * torch.eye(6, dtype=torch.float64)
    mean, covariance = torch.linalg.solve(precision, x.t() @ y / NOISE_VAR), precision.inverse()
    torch.testing.assert_close(model["weight"][0], mean)
    torch.testing.assert_close(unpacked(state[COVARIANCE], 6), covariance)
    drawn = method.predictive(model, state).members["weight"][:, 0]
    torch.testing.assert_close(drawn.mean(0), mean, atol=0.01, rtol=0)
    scale = covariance.diag().sqrt()
    gap = (drawn.T.cov() - covariance) / scale / scale[:, None]
    assert gap.abs().max() < 0.04


def test_of_a_part_of_the_clients_widths_are_by_all_examples():
    """Two clients stand for six of the same data: the covariance is a third, but for the prior."""
    replies = linear_replies(clients(4, 2, features=3), 0.0 + 1e-6)
    model = {"weight": torch.zeros(1, 3, dtype=torch.float64)}
    method, found = LastLayerLaplace(prior_precision=1e-6), []
    for times in (0, 3):
        examples = times * int(sum(reply.weight for reply in replies))
        _, state = method.aggregate(Server(model, {}, seed=3, examples=examples), replies)
        found.append(state[COVARIANCE])
    torch.testing.assert_close(found[0], 3 * found[1], rtol=1e-5, atol=0)


def test_the_wasserstein_barycentre_has_the_mean_by_size_and_is_wider_than_the_product():
    data = clients(4, 3, features=3, correlation=0.7)
    replies = linear_replies(data, 1.0)
    server = Server({"weight": torch.zeros(1, 3, dtype=torch.float64)}, {})
    model, state = LastLayerLaplace(rule="WB").aggregate(server, replies)
    _, product = LastLayerLaplace(rule="RKLB").aggregate(server, replies)
    total = sum(reply.weight for reply in replies)
    mean = sum(reply.weight / total * reply.tensors["weight"] for reply in replies)
    torch.testing.assert_close(model["weight"], mean)
    wider = unpacked(state[COVARIANCE], 3) - unpacked(product[COVARIANCE], 3)
    assert torch.linalg.det(unpacked(state[COVARIANCE], 3)) > 0 and wider.trace() > 0


def network_and_replies(count=3):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.BatchNorm1d(3), nn.Linear(3, 2))
    model = dict(network.state_dict())
    method = LastLayerLaplace()
    replies = []
    for k in range(count):
        root = torch.randn(8, 8)
        sent = {n: torch.randn_like(t) if t.is_floating_point() else t for n, t in model.items()}
        replies.append(Reply(str(k), 1.0 + k, {**sent, CURVATURE: packed(root @ root.T)}))
    assert {n: t.shape for n, t in method.reply_like(model).items()} == {
        n: t.shape for n, t in replies[0].tensors.items()
    }
    return network, model, replies


def test_members_are_networks_that_differ_in_the_last_layer_alone():
    network, model, replies = network_and_replies()
    method = LastLayerLaplace(networks=4)
    assert method.predictive(model, method.start(model)).members == {} and method.held(3) == 4
    after, state = method.aggregate(Server(model, {}, seed=1), replies)
    members = method.predictive(after, state).members
    assert members.keys() == model.keys()
    for name, tensor in members.items():
        assert tensor.shape == (4, *model[name].shape) and tensor.dtype == model[name].dtype
        assert (tensor == after[name]).all() == (name not in ("3.weight", "3.bias"))
    other = LastLayerLaplace(networks=4).aggregate(Server(model, {}, seed=2), replies)[1]
    assert not torch.isclose(other[DRAWS], state[DRAWS]).any()


@pytest.mark.parametrize("rule", ["RKLB", "WB"])
def test_a_hessian_that_is_none_leaves_the_aggregate_sound(rule):
    """A hostile triangle has eigenvalues below 0, with which a precision would be none."""
    _, model, replies = network_and_replies()
    hostile = {**replies[0].tensors, CURVATURE: -1e6 * torch.ones(36)}
    sent = [Reply("9", 5.0, hostile), *replies]
    after, state = LastLayerLaplace(rule=rule).aggregate(Server(model, {}), sent)
    assert all(tensor.isfinite().all() for tensor in (*after.values(), *state.values()))


@pytest.mark.parametrize("parameters", [{"rule": "EAA"}, {"structure": "kronecker", "rule": "WB"}])
def test_a_rule_that_a_structure_does_not_have_is_refused(parameters):
    with pytest.raises(SettingError, match="rule"):
        LastLayerLaplace(**parameters)


def test_a_last_layer_that_is_too_large_is_refused_with_its_size():
    model = {"w.weight": torch.zeros(10, 500), "w.bias": torch.zeros(10)}
    for work in (LastLayerLaplace().start, LastLayerLaplace().reply_like):
        with pytest.raises(SettingError, match=r"5,010 weights in w.weight, w.bias.*200,800,800"):
            work(model)
