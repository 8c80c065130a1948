"""FedExLoRA's adapters are the mean of the clients' products, whatever their ranks."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedbary.errors import SettingError
from fedbary.inference import Local, Training, local_method
from fedbary.methods import Reply, Server
from fedbary.methods.fedexlora import RANK, FedExLoRA
from fedbary.variational.adapters import Adapters, low_rank, merged, truncated, with_adapters
from fedbary.variational.frozen import keep_frozen
from fedbary.variational.noise import seeded

few = settings(max_examples=6, deadline=None)
SEEDS = st.integers(0, 2**32 - 1)
SIZES = (5.0, 3.0, 2.0)
METHOD = FedExLoRA()


def network(factor="both"):
    """Return a network with adapters of a convolution and a linear layer, before a head."""
    with seeded(0):
        body = nn.Sequential(nn.Conv2d(2, 5, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten())
        body.append(nn.Linear(45, 7))
        how = Adapters(3, "0,3", 6, factor, has_residual=factor == "both")
        found = nn.Sequential(with_adapters(body.requires_grad_(False), how, 0), nn.Linear(7, 2))
    return keep_frozen(found)


def held(tensors, factor="both"):
    """Return the ΔW of a state dict."""
    made = network(factor)
    made.load_state_dict(tensors)
    return low_rank(made)


def drawn(model, seed, rank=3):
    """Return a reply of random factors, of which the last columns and rows are 0."""
    generator = torch.Generator().manual_seed(seed)
    found = {n: torch.randn(t.shape, generator=generator) for n, t in model.items()}
    for name in found:
        if ".lora_A." in name:
            found[name][rank:] = 0
        elif ".lora_B." in name:
            found[name][:, rank:] = 0
    return METHOD.reply_like(found)


def trained(received, rank=None, factor="both"):
    """Return a client's reply and its network."""
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(12, 2, 6, 6, generator=generator)
    training = Training(epochs=2, batch_size=4, lr=0.1, momentum=0.9, weight_decay=0.1)
    by = local_method("variational")
    local = Local(network(factor), x, torch.arange(12) % 2, inference=by, training=training)
    sent = received if rank is None else {**received, RANK: torch.tensor([float(rank)])}
    return METHOD.fit(local, sent, {}).reply, local.model


@few
@given(SEEDS, st.lists(st.integers(1, 3), min_size=3, max_size=3))
def test_delta_w_is_the_mean_of_the_clients_round_after_round(seed, ranks):
    model = network().state_dict()
    for round in range(2):
        replies = [
            Reply(str(k), size, drawn(model, seed + 3 * round + k, rank))
            for k, (size, rank) in enumerate(zip(SIZES, ranks, strict=True))
        ]
        of_clients = [held({**model, **reply.tensors}) for reply in replies]
        model, _ = METHOD.aggregate(Server(model, {}), replies)
        for name, delta in held(model).items():
            mean = sum(s * p[name] for s, p in zip(SIZES, of_clients, strict=True)) / sum(SIZES)
            torch.testing.assert_close(delta, mean, atol=1e-4, rtol=1e-4)


@few
@given(SEEDS)
def test_merged_weights_hold_the_residual(seed):
    whole = network()
    model = {n: torch.randn(t.shape, generator=torch.Generator().manual_seed(seed)) for n, t in
             whole.state_dict().items()}  # fmt: skip
    whole.load_state_dict(model)
    x = torch.rand(3, 2, 6, 6, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(merged(whole)(x), whole(x), atol=1e-3, rtol=1e-3)
    assert sum(name.endswith(".residual") for name in model) == 2


@pytest.mark.parametrize("factor", ["B", "both"])
def test_a_client_of_a_smaller_rank_trains_that_rank_alone(factor):
    model = network(factor).state_dict()
    for name in model:
        if ".lora_B." in name:
            model[name] = torch.randn(model[name].shape, generator=torch.Generator().manual_seed(0))
    reply, after = trained(model, 2, factor)
    for name, tensor in reply.items():
        if ".lora_B." in name:
            assert not tensor[:, 2:].any() and (tensor[:, :2] != model[name][:, :2]).all()
        elif ".lora_A." in name:
            assert not tensor[2:].any() and tensor[:2].any()
    start = {n: p for n, p in network(factor).named_parameters() if not p.requires_grad}
    assert all(torch.equal(dict(after.named_parameters())[n], p) for n, p in start.items())


@pytest.mark.parametrize("factor", ["B", "both"])
def test_a_client_of_the_full_rank_trains_as_without_ranks(factor):
    model = network(factor).state_dict()
    (one, _), (other, _) = (trained(model, rank, factor) for rank in (None, 3))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_with_a_frozen_the_mean_of_b_is_exact_for_every_rank():
    model = network("B").state_dict()
    replies = [
        Reply(str(k), size, drawn(model, k, rank))
        for k, (size, rank) in enumerate(zip(SIZES, (3, 1, 2), strict=True))
    ]
    found, _ = METHOD.aggregate(Server(model, {}), replies)
    products = [held(reply.tensors, "B") for reply in replies]
    for name, delta in held(found, "B").items():
        mean = sum(s * p[name] for s, p in zip(SIZES, products, strict=True)) / sum(SIZES)
        torch.testing.assert_close(delta, mean, atol=1e-5, rtol=1e-4)


def test_a_truncated_network_is_whole_again():
    whole = network("B")
    before = copy.deepcopy(dict(whole.named_parameters()))
    with truncated(whole, 1):
        a = whole.get_submodule("0.3").lora_A["default"].weight
        assert a[0].any() and not a[1:].any()
    assert all(torch.equal(before[n], p) for n, p in whole.named_parameters() if "lora_A" in n)


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ("4", "NAME:RANK of each client"),
        ("ward 7:0", "NAME:RANK of each client"),
        ("a:1,a:2", "NAME:RANK of each client"),
        ("a:1,b:4", "ranks: 'b:4'; expected ranks up to 3"),
    ],
)
def test_ranks_that_cannot_be_are_refused(ranks, said):
    with pytest.raises(SettingError, match=said):
        FedExLoRA(ranks=ranks).start(network().state_dict())
    with pytest.raises(SettingError, match="all without adapters"):
        FedExLoRA(ranks="a:1").start(nn.Linear(2, 2).state_dict())


def test_a_client_is_sent_its_own_rank_and_an_absent_one_is_said():
    method, said = FedExLoRA(ranks="ward 7:2, ward 8:1"), []
    server = Server(network().state_dict(), {}, warn=said.append)
    assert float(method.send(server, "ward 7")[RANK]) == 2
    assert RANK not in method.send(server, "ward 1") and RANK not in method.show(server, "ward 7")
    method.aggregate(server, [Reply("ward 7", 1.0, drawn(server.model, 0))])
    assert said == ["ranks: no reply of ward 8 in the first round"]
