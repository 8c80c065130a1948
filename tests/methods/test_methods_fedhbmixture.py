"""The truths of FedHB's mixture: its centres, its gate, what both predict together."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_regressions import Points, data, nll, state
from torch import nn

from fedbary.errors import SettingError
from fedbary.inference import Training
from fedbary.methods import Local, Reply, Server
from fedbary.methods.fedhbmixture import FedHBMixture
from fedbary.predictive import Predictive
from fedbary.predictive.predictor import Draws, Gated, kind_of


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.integers(2, 5), st.integers(1, 3))
def test_the_centres_are_where_the_clients_and_the_prior_hold_them(seed, clients, centres):
    """Zero gradient of Σ_kj c_kj ‖m_k − r_j‖²/2σ² + ½ ‖r_j‖², by the assignments of before."""
    generator = torch.Generator().manual_seed(seed)
    method = FedHBMixture(centres=centres, centre_std=0.8)
    before = torch.randn(centres, 3, generator=generator, dtype=torch.float64)
    networks = torch.randn(clients, 3, generator=generator, dtype=torch.float64)
    replies = [
        Reply(str(k), 1.0, {"w": network, "gate/w": -network}) for k, network in enumerate(networks)
    ]
    server = Server({"w": before[0]}, {"centres/w": before, "gate/w": before[0]})
    model, state = method.aggregate(server, replies)
    near = (-torch.cdist(networks, before).square() / 2 / 0.64).softmax(1)
    after = state["centres/w"].clone().requires_grad_()
    squares = (networks[:, None] - after).square().sum(-1)
    ((near * squares).sum() / 2 / 0.64 + after.square().sum() / 2).backward()
    moved = near.sum(0) > 0.01
    assert after.grad[moved].abs().max() < 1e-10
    assert torch.equal(state["centres/w"][~moved], before[~moved])
    assert torch.equal(model["w"], state["centres/w"][near.sum(0).argmax()])
    torch.testing.assert_close(state["gate/w"], -networks.mean(0))


def test_two_kinds_of_clients_find_their_centres():
    """Targets of opposite signs: after some rounds each kind is near a centre of its own."""
    x, y = data()
    method, model = FedHBMixture(centre_std=0.3), state(Points())
    held = method.start(model)
    for _ in range(8):
        server, replies = Server(model, held), []
        for k, sign in enumerate([1, 1, -1, -1, -1]):
            training = Training(20, 10, lr=0.02)
            client = Local(Points(), x, sign * y, nll, None, training, 1.0, 1, k)
            fitted = method.fit(client, method.send(server, str(k)), {})
            replies.append(Reply(str(k), 1.0, fitted.reply))
        model, held = method.aggregate(server, replies)
    first, second = held["centres/w"]
    assert (first - second).norm() > 0.5 and float(first @ second) < 0
    assert torch.equal(model["w"], held["centres/w"][int(first[0] > 0)])  # the larger kind's


def halves(k, count=100):
    """Return inputs about ±2.5: on one side the label is the sign of x₂, on the other not."""
    generator = torch.Generator().manual_seed(k)
    x = torch.randn(count, 2, generator=generator)
    side = 1.0 if k % 2 else -1.0
    return torch.stack([x[:, 0] + 2.5 * side, x[:, 1]], 1), (side * x[:, 1] > 0).long()


def test_the_gate_tells_from_an_input_whose_centre_is_right():
    """No linear classifier serves both kinds of clients, nor does the mean of two."""
    torch.manual_seed(0)
    method, model = FedHBMixture(centre_std=0.3), dict(nn.Linear(2, 2).state_dict())
    held, loss = method.start(model), nn.functional.cross_entropy
    for server_round in range(1, 8):
        server, replies = Server(model, held, server_round), []
        for k in range(4):
            training = Training(4, 10, lr=0.1)
            client = Local(nn.Linear(2, 2), *halves(k), loss, None, training, 1.0, server_round, k)
            fitted = method.fit(client, method.send(server, str(k)), {})
            assert fitted.reply.keys() == method.reply_like(model).keys()
            replies.append(Reply(str(k), 1.0, fitted.reply))
        model, held = method.aggregate(server, replies)
    x, y = (torch.cat(parts) for parts in zip(halves(11), halves(12), strict=True))
    by = method.predictive(model, held)

    def right(kind):
        network = nn.Linear(2, 2)
        found = kind_of(kind)().predict(network, x, by, Draws(2, torch.Generator()))
        torch.testing.assert_close(found.probs.sum(1), torch.ones(len(x)))
        assert (found.epistemic <= found.entropy + 1e-6).all()
        return float((found.probs.argmax(1) == y).float().mean())

    assert right("auto") > 0.9
    assert right("members") < 0.75 and right("product") < 0.75


def test_one_centre_needs_no_gate_and_too_many_for_the_outputs_are_refused():
    model = dict(nn.Linear(2, 2).state_dict())
    for centres in (1, 3, 4):
        method = FedHBMixture(centres=centres)
        client = Local(
            nn.Linear(2, 2), *halves(0), nn.functional.cross_entropy, None, Training(1, 50, lr=0.1),
            1.0, 1, 0,
        )  # fmt: skip
        sent = method.send(Server(model, method.start(model)), "0")
        if centres == 4:
            with pytest.raises(SettingError, match="centres: 4; expected at most 3"):
                method.fit(client, sent, {})
            continue
        reply = method.fit(client, sent, {}).reply
        moved = any(not torch.equal(reply["gate/" + n], t) for n, t in model.items())
        assert moved == (centres == 3)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 2), st.integers(0, 99))
def test_a_gated_forecast_has_the_moments_of_its_mixture(experts, seed):
    """The gate of two is a sigmoid."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(6, 2, generator=generator, dtype=torch.float64)
    networks = {
        "output.weight": torch.randn(experts + 1, 1, 2, generator=generator).double(),
        "output.bias": torch.randn(experts + 1, 1, generator=generator).double(),
    }
    by = Predictive({}, members=networks, kind=Gated(experts), noise_var=0.3)
    _, forecast = Gated(experts).forecasting(by, Draws(1, generator))
    found = forecast(x)
    answers = x @ networks["output.weight"][:, 0].T + networks["output.bias"][:, 0]
    share = answers[:, -1].sigmoid() if experts == 2 else torch.ones(6).double()
    shares = torch.stack([share, 1 - share], 1)[:, :experts]
    mean = (shares * answers[:, :experts]).sum(1)
    second = (shares * (answers[:, :experts].square() + 0.3)).sum(1)
    torch.testing.assert_close(found.mean, mean)
    torch.testing.assert_close(found.var, second - mean.square(), rtol=1e-4, atol=1e-5)
