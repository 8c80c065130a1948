"""Structures of a last layer's curvature: what is sent, what the mean minimises, what is drawn."""

from dataclasses import replace

import pytest
import torch
from last_layers import local
from torch import nn

from fedbary.aggregation.structures import STRUCTURES
from fedbary.data.sites import Site
from fedbary.errors import SettingError
from fedbary.methods import Reply, Server
from fedbary.methods._curvature import statistics
from fedbary.methods._kronecker import last_layer, matrix
from fedbary.methods.lastlayerlaplace import (
    DRAWS,
    LastLayerLaplace,
    hessian,
)
from fedbary.scores.metrics import evaluate
from fedbary.settings.config import resolve
from fedbary.trained import load
from fedbary.variational.regressor import Regressor, gaussian_nll
from server_app.engine.inline import run_inline


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
    (shown,) = {n for n in method.show(Server(model, state), "a") if n not in model}
    assert shown == DRAWS and torch.equal(
        method.show(Server(model, state), "a")[DRAWS], state[DRAWS]
    )


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
        statistics(
            local(network, x, y, nll),
            STRUCTURES[structure](
                len(network.state_dict()[last_layer(network.state_dict())[0]]), 5
            ),
        )


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
    assert abs(nll(plain) - nll(replace(plain, members={}))) > 1e-3
    assert nll(trained) < nll(plain)
