"""Frozen parts of a network: nothing moves them, and the state dict is what trains."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
from torch import nn

from fedbary.errors import SettingError
from fedbary.variational import frozen_config, keep_frozen, require_same_frozen, variational
from fedbary.variational.frozen import frozen_tensors

LAYERS = {
    "linear": lambda: nn.Linear(3, 3),
    "norm": lambda: nn.BatchNorm1d(3),
    "plain norm": lambda: nn.BatchNorm1d(3, affine=False),
    "nested": lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, affine=False)),
}


@st.composite
def networks(draw):
    """Networks of which each layer is frozen or not; the last one trains."""
    chosen = draw(st.lists(st.tuples(st.sampled_from(sorted(LAYERS)), st.booleans()), max_size=5))
    torch.manual_seed(draw(st.integers(0, 99)))
    layers = [LAYERS[kind]().requires_grad_(trains) for kind, trains in chosen]
    return nn.Sequential(*layers, nn.Linear(3, 2))


def states(network):
    return {name: tensor.clone() for name, tensor in network.state_dict().items()}


@given(networks())
def test_training_moves_what_travels_alone(network):
    whole = states(network)
    keep_frozen(network)
    frozen, travels = frozen_tensors(network), states(network)
    assert not frozen.keys() & travels.keys() and frozen.keys() | travels.keys() == whole.keys()
    assert {n for n, p in network.named_parameters() if p.requires_grad} <= travels.keys()
    optimiser = torch.optim.SGD([p for p in network.parameters() if p.requires_grad], lr=0.1)
    network.train()(torch.randn(8, 3) + 5).square().sum().backward()
    optimiser.step()
    assert all(torch.equal(t, whole[name]) for name, t in frozen_tensors(network).items())


@given(networks())
def test_a_state_dict_loads_with_frozen_tensors_and_without(network):
    whole = states(network)
    keep_frozen(network)
    part = {name: tensor + 1 for name, tensor in states(network).items()}
    network.load_state_dict(part)
    assert all(torch.equal(network.state_dict()[name], tensor) for name, tensor in part.items())
    other = copy.deepcopy(network)
    other.load_state_dict({name: tensor + 2 for name, tensor in whole.items()})
    for name, tensor in frozen_tensors(other).items():
        assert torch.equal(tensor, whole[name] + 2)
        assert torch.equal(frozen_tensors(network)[name], whole[name])
    assert other.state_dict().keys() == part.keys()


@given(networks(), st.data())
def test_the_digest_is_that_of_the_frozen_tensors_alone(network, data):
    keep_frozen(network)
    other = copy.deepcopy(network)
    for tensor in other.state_dict().values():
        tensor += 1
    assert frozen_config(network) == frozen_config(other)
    require_same_frozen(other, frozen_config(network))
    if not (frozen := frozen_tensors(other)):
        assert frozen_config(network) == {}
        return
    frozen[data.draw(st.sampled_from(sorted(frozen)))].add_(1)
    with pytest.raises(SettingError, match="model: 'digest .* frozen weights as of the run's"):
        require_same_frozen(other, frozen_config(network))
    refused("frozen: 'nothing'; .* digest", require_same_frozen, other, {})
    refused("nothing frozen", lambda: require_same_frozen(nn.Linear(2, 2), frozen_config(network)))


def test_a_norm_without_weights_belongs_to_the_layer_before_it():
    frozen, trained = nn.Linear(3, 3).requires_grad_(False), nn.Linear(3, 3)
    norms = [nn.BatchNorm1d(3, affine=False) for _ in range(3)]
    network = keep_frozen(nn.Sequential(norms[0], frozen, norms[1], trained, norms[2]))
    network.train()
    assert [norm.training for norm in norms] == [True, False, True]


def test_all_within_a_frozen_part_is_in_evaluation_mode_and_what_lies_beside_it_is_not():
    body = nn.Sequential(nn.Linear(3, 3), nn.Dropout(), nn.Identity()).requires_grad_(False)
    network = keep_frozen(nn.Sequential(body, nn.Dropout(), nn.Linear(3, 2))).train()
    assert not body[1].training and network[1].training
    x = torch.randn(5, 3)
    assert torch.equal(body(x), body(x)) and isinstance(body, nn.Sequential)


def test_of_a_gaussian_s_two_tensors_both_travel_or_none():
    network = variational(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), last=2)
    network[0].weight_mean.requires_grad_(False)
    keep_frozen(network)
    assert frozen_tensors(network).keys() == {"0.weight_mean", "0.weight_log_var"}
    assert "0.bias" in network.state_dict()


def test_a_network_of_which_nothing_trains_is_refused():
    refused("something trains", lambda: keep_frozen(nn.Linear(2, 2).requires_grad_(False)))


def test_it_may_be_said_twice_and_of_networks_that_share_a_body():
    body = nn.Linear(3, 3).requires_grad_(False)
    network, other = (nn.Sequential(body, nn.Linear(3, 2)) for _ in range(2))
    assert keep_frozen(keep_frozen(network)) is network and keep_frozen(other) is other
    for each in (network, other):
        assert each.state_dict().keys() == {"1.weight", "1.bias"}
