"""FedBN: batch norms never leave their client, and the rest is the barycentre's."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedbary.inference import Training, local_method
from fedbary.methods import Local, Reply, Server
from fedbary.methods.barycentre import Barycentre
from fedbary.methods.fedbn import FedBN, own_names
from fedbary.variational import variational

TRAINING = Training(epochs=2, batch_size=16, lr=0.05)
OWN = ("0.", "3.0.")


def network(seed=0):
    """Return one with batch norms of the inputs and within a block."""
    torch.manual_seed(seed)
    block = nn.Sequential(nn.BatchNorm1d(5, affine=False), nn.Linear(5, 2))
    net = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 5), nn.ReLU(), block)
    return variational(net, last=1)


def client(k, net, server_round=1, shift=5.0):
    """A client whose inputs are shifted and scaled by an amount of its own."""
    generator = torch.Generator().manual_seed(k)
    x = torch.randn(64, 3, generator=generator)
    y = (x[:, 0] > x[:, 1]).long()
    return Local(
        net, (1 + k) * x + shift * k, y, nn.functional.cross_entropy, local_method("variational"),
        TRAINING, 1.0, server_round, 10 * server_round + k,
    )  # fmt: skip


def is_own(name):
    return name.startswith(OWN) and not name.startswith("3.1")


def federation(method, rounds=2, clients=3, shift=5.0):
    """Run rounds; return the global model, and what each client keeps and sent last."""
    model, state = dict(network().state_dict()), {}
    kept = [{} for _ in range(clients)]
    for server_round in range(1, rounds + 1):
        replies = []
        for k in range(clients):
            received = method.send(Server(model, state), str(k))
            fitted = method.fit(client(k, network(), server_round, shift=shift), received, kept[k])
            kept[k] = fitted.kept
            replies.append(Reply(str(k), 1.0 + k, fitted.reply))
        model, state = method.aggregate(Server(model, state, server_round), replies)
    return model, kept, replies


def test_what_is_a_client_s_own_are_the_batch_norms_and_all_of_them():
    state = network().state_dict()
    assert own_names(state) == {name for name in state if is_own(name)}
    assert {"0.weight", "0.num_batches_tracked", "3.0.running_var"} <= own_names(state)
    assert own_names(nn.BatchNorm1d(2).state_dict()) == nn.BatchNorm1d(2).state_dict().keys()
    assert not own_names({"running_means": torch.zeros(2), "my_running_mean": torch.zeros(2)})


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("rule", ["RKLB", "WB", "Median"])
def test_norms_stay_and_the_rest_is_the_barycentre_of_what_was_sent(rule, momentum):
    method = FedBN(rule=rule, server_momentum=momentum)
    model, kept, replies = federation(method, rounds=1)
    start = network().state_dict()
    assert list(model) == list(start)
    for name, tensor in start.items():
        if is_own(name):
            assert torch.equal(model[name], tensor)
    shared = {name: tensor for name, tensor in start.items() if not is_own(name)}
    assert all(reply.tensors.keys() == shared.keys() for reply in replies)
    assert method.reply_like(start).keys() == shared.keys()
    expected, _ = Barycentre(rule=rule, server_momentum=momentum).aggregate(
        Server(shared, {}), replies
    )
    assert all(torch.equal(model[name], tensor) for name, tensor in expected.items())
    assert all(held.keys() == {n for n in start if is_own(n)} for held in kept)


def test_a_client_goes_on_from_its_own_norms_and_predicts_by_them():
    method = FedBN()
    model, kept, _ = federation(method)
    for k, held in enumerate(kept):
        assert int(held["0.num_batches_tracked"]) == 2 * TRAINING.epochs * 4  # of both rounds
        own = method.personal(client(k, network()), method.send(Server(model, {}), "0"), held)
        assert all(torch.equal(own.model[n], held[n] if is_own(n) else model[n]) for n in model)
    assert method.personal(client(0, network()), model, {}) is None


def test_clients_whose_inputs_are_shifted_are_served_by_their_own_norms():
    def right(state, k):
        net = network()
        net.load_state_dict(state)
        local = client(k, net, shift=40.0)
        return float((net.eval()(local.x).argmax(1) == local.y).float().mean())

    method = FedBN()
    model, kept, _ = federation(method, rounds=8, shift=40.0)
    own = [right({**model, **held}, k) for k, held in enumerate(kept)]
    common, _, _ = federation(Barycentre(), rounds=8, shift=40.0)
    averaged = [right(common, k) for k in range(3)]
    assert min(own) > 0.85
    assert sum(own) / 3 > sum(averaged) / 3 + 0.1


@settings(max_examples=10)
@given(st.integers(0, 99), st.integers(1, 4))
def test_without_batch_norm_it_is_the_barycentre_and_says_so(seed, clients):
    torch.manual_seed(seed)
    model = variational(nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)), last=1)
    state = dict(model.state_dict())
    replies = [
        Reply(str(k), 1.0 + k, {n: t + 0.1 * torch.randn_like(t) for n, t in state.items()})
        for k in range(clients)
    ]
    said = []
    found, _ = FedBN().aggregate(Server(state, {}, 1, warn=said.append), replies)
    expected, _ = Barycentre().aggregate(Server(state, {}), replies)
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    (line,) = said
    assert "no batch norm" in line
    FedBN().aggregate(Server(state, {}, 2, warn=said.append), replies)
    assert len(said) == 1
