"""Laplace of the last layer: exact Hessians and rounds, and the structures of its curvature."""

from dataclasses import replace

import pytest
import torch
from linear_gaussian import NOISE_VAR, clients
from torch import nn

from fedbary.aggregation.covariance import STRUCTURES, packed, unpacked
from fedbary.data.sites import Site
from fedbary.errors import SettingError
from fedbary.inference import Training, local_method
from fedbary.methods import Local, Reply, Server
from fedbary.methods._curvature import last_layer, matrix, statistics
from fedbary.methods.lastlayerlaplace import COVARIANCE, CURVATURE, DRAWS, LastLayerLaplace, hessian
from fedbary.scores.metrics import evaluate
from fedbary.server_app.engine.inline import run_inline
from fedbary.settings.config import resolve
from fedbary.trained import load
from fedbary.variational.regressor import Regressor, gaussian_nll


def local(network, x, y, nll, inference=None):
    """A client of three epochs, in the first round."""
    training = Training(3, 16, lr=0.05)
    return Local(network, x, y, nll, inference or local_method("variational"), training, 1.0, 1, 3)


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


@pytest.mark.parametrize("kind", ["classes", "numbers", "heteroscedastic"])
@pytest.mark.parametrize("at_once", [2**24, 1])
def test_the_hessian_is_that_of_the_loss(kind, at_once, monkeypatch):
    monkeypatch.setattr("fedbary.methods.lastlayerlaplace.GRADIENTS_AT_ONCE", at_once)
    torch.manual_seed(0)
    if kind == "classes":
        x, y, nll = torch.rand(7, 1, 6, 6), torch.randint(3, (7,)), nn.functional.cross_entropy
        network = nn.Sequential(
            nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Dropout(0.5), nn.ReLU(), nn.Linear(32, 3)
        )
        network.eval().to(memory_format=torch.channels_last)
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


def softmax_network(features=5, classes=3):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, features), nn.Tanh(), nn.Linear(features, classes)).double()


def softmax_data(k, count=30):
    generator = torch.Generator().manual_seed(k)
    x = torch.randn(count, 4, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, 3, (count,), generator=generator)


def still(local):
    """Leave the network as it is."""
    return {}


@pytest.mark.parametrize("name", ["diagonal", "kronecker", "full"])
def test_statistics_are_those_of_the_hessian(name):
    """Of one example a Kronecker product is the whole Hessian; a diagonal is that of any."""
    network, count = softmax_network(), 1 if name == "kronecker" else 30
    given = local(network, *softmax_data(0, count), nn.functional.cross_entropy)
    structure = STRUCTURES[name](3, 6)
    product = structure.product(statistics(given, structure))
    found = torch.stack([product(e.view(3, 6)).flatten() for e in torch.eye(18).double()], 1)
    order = torch.cat([torch.arange(15).view(3, 5), torch.arange(15, 18)[:, None]], 1).flatten()
    exact = hessian(given)[order][:, order]
    torch.testing.assert_close(found, exact.diag().diag() if name == "diagonal" else exact)


@pytest.mark.parametrize("name", ["diagonal", "kronecker", "shared"])
def test_clients_of_equal_data_are_one_client_of_all_data(name):
    """The mean is their own, and the draws have the structure's covariance of all examples."""
    network, (x, y) = softmax_network(), softmax_data(0)
    method = LastLayerLaplace(structure=name, networks=4000, prior_precision=2.0)
    start = {n: t.clone() for n, t in network.state_dict().items()}
    given = local(network, x, y, nn.functional.cross_entropy, still)
    sent = method.fit(given, start, {}).reply
    like = method.reply_like(start)
    assert {n: t.shape for n, t in sent.items()} == {n: t.shape for n, t in like.items()}
    model, state = method.aggregate(Server(start, {}), [Reply(k, 30.0, sent) for k in "abc"])
    for key, tensor in model.items():
        torch.testing.assert_close(tensor, start[key])
    structure = STRUCTURES[name](3, 6)
    held = {n: 90 * t for n, t in statistics(given, structure).items()}
    root = structure.root(held, 2.0)
    columns = torch.stack([root(e.view(3, 6)).flatten() for e in torch.eye(18).double()], 1)
    members = method.predictive(model, state).members
    drawn = torch.cat([members["2.weight"], members["2.bias"][..., None]], 2).flatten(1)
    covariance = columns @ columns.T
    scale = covariance.diag().sqrt()
    gap = (drawn.T.cov() - covariance) / scale / scale[:, None]
    assert gap.abs().max() < 0.1
    shown = method.show(Server(model, state), "a")
    assert shown.keys() - model.keys() == {DRAWS} and torch.equal(shown[DRAWS], state[DRAWS])


def test_the_mean_minimises_the_sum_of_the_clients_quadratics():
    network, method = softmax_network(), LastLayerLaplace(structure="kronecker")
    start = {n: t.clone() for n, t in network.state_dict().items()}
    replies = []
    for k in range(3):
        moved = {n: t + torch.randn_like(t) for n, t in start.items()}
        given = local(network, *softmax_data(k, 10 + 10 * k), nn.functional.cross_entropy, still)
        sent = method.fit(given, {**start, **{n: moved[n] for n in ("2.weight", "2.bias")}}, {})
        replies.append(Reply(str(k), 10.0 + 10 * k, sent.reply))
    model, _ = method.aggregate(Server(start, {}), replies)
    structure, slope = STRUCTURES["kronecker"](3, 6), torch.zeros(3, 6).double()
    for reply in replies:
        held = {n: reply.weight * reply.tensors["curvature/" + n] for n in structure.sizes()}
        away = matrix(model, ["2.weight", "2.bias"]) - matrix(reply.tensors, ["2.weight", "2.bias"])
        slope += structure.product(held)(away) + reply.weight / 60 * away
    torch.testing.assert_close(slope, torch.zeros_like(slope), atol=1e-6, rtol=0)


@pytest.mark.parametrize("structure", ["kronecker", "shared", "diagonal"])
def test_a_layer_of_many_weights_fits_a_structure(structure):
    model = {"w.weight": torch.zeros(10, 1280), "w.bias": torch.zeros(10)}
    method = LastLayerLaplace(structure=structure)
    method.start(model)
    sent = sum(t.numel() for n, t in method.reply_like(model).items() if n not in model)
    assert sent <= 1281 * 1282 // 2 + 10 * 11 // 2 + 1


@pytest.mark.parametrize(
    ("network", "nll", "structure", "said"),
    [
        (Regressor(3, 4, noise="learned"), gaussian_nll, "shared", "bounds one softmax alone"),
        (Regressor(3, 4, noise="heteroscedastic"), gaussian_nll, "kronecker", "not convex"),
    ],
)
def test_a_structure_that_does_not_hold_a_loss_is_refused(network, nll, structure, said):
    network.reset(-3.0, 0)
    x, y = torch.randn(7, 3), 1e-3 * torch.randn(7)
    with pytest.raises(SettingError, match=said):
        outputs = len(network.state_dict()[last_layer(network.state_dict())[0]])
        statistics(local(network, x, y, nll), STRUCTURES[structure](outputs, 5))


def test_a_curvature_of_no_convex_loss_is_refused():
    network, method = softmax_network(), LastLayerLaplace(structure="kronecker")
    start = {n: t.clone() for n, t in network.state_dict().items()}
    given = local(network, *softmax_data(0), nn.functional.cross_entropy, still)
    sound = method.fit(given, start, {}).reply
    bad = {n: -t if n.startswith("curvature/") else t for n, t in sound.items()}
    with pytest.raises(ValueError, match="no convex loss"):
        method.aggregate(Server(start, {}), [Reply("0", 1.0, sound), Reply("1", 1.0, bad)])


def test_clients_fit_the_temperature_to_what_the_drawn_networks_predict_together(tmp_path):
    words = {
        "engine": "inline", "device": "cpu", "pictures": False, "clients": 1, "rounds": 1,
        "local_epochs": 1, "holdout": 0.5, "model": "linear", "bayesian_layers": 0, "lr": 0.1,
        "method": "LastLayerLaplace", "structure": "kronecker", "calibrate": "temperature",
    }  # fmt: skip
    run_inline(resolve(words), tmp_path / "run")
    trained = load(tmp_path / "run")
    shard = trained.task.shard(Site("partition 0", "", 0, 1), trained.signature)
    plain = replace(trained, rounds=[{**trained.line, "temperature": 1.0}])

    def nll(kept):
        return evaluate(kept.predict(shard.x_held_out).probs, shard.y_held_out)["nll"]

    (client,) = trained.line["held_out"]["clients"]
    assert client["nll"] == pytest.approx(nll(plain), rel=1e-4)
    point = replace(plain, predictive=replace(plain.predictive, members={}))
    assert abs(nll(plain) - nll(point)) > 1e-3
    assert nll(trained) < nll(plain)
