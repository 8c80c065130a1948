"""What a run would find out in its last round about a network of one's own, it finds before."""

import pytest
import torch

from fedbary.errors import SettingError
from fedbary.settings.config import resolve
from fedbary.tasks._network import network

SHAPE = (1, 8, 8)


def made(name, layers, seed=0):
    chosen = resolve({"model": f"own_models:{name}", "bayesian_layers": layers, "device": "cpu"})
    return network(chosen, SHAPE, 3, seed)


@pytest.mark.parametrize(
    ("name", "layers", "said"),
    [
        ("tied", 1, "tensors are each its own: 2.weight and 3.weight are one"),
        ("one_layer_twice", 0, "2.bias and 3.bias are one|2.weight and 3.weight are one"),
        ("encoder", 3, "another reads that of encoder.linear.; bayesian_layers up to 1 leave"),
        ("reading", 1, "another reads that of 2.layer; bayesian_layers up to 0 leave"),
        ("auxiliary", 1, r"in training mode too with one tensor \(2, 3\), not a tuple"),
        ("eager", 0, "answers 2 inputs in training mode .*RuntimeError.*grad"),
    ],
)
def test_what_cannot_be_trained_asked_or_kept_is_refused_by_name(name, layers, said):
    with pytest.raises(SettingError, match=f"model: 'own_models:{name}'; expected .*({said})"):
        made(name, layers)


@pytest.mark.parametrize(("name", "layers"), [("encoder", 1), ("encoder", 0), ("reading", 0)])
def test_what_is_left_plain_works(name, layers):
    assert made(name, layers)(torch.rand(2, *SHAPE)).shape == (2, 3)


def test_wrappers_that_spread_a_batch_are_taken_off():
    assert set(made("parallel", 1).state_dict()) == {
        "1.0.weight", "1.0.bias", "2.weight_mean", "2.weight_log_var", "2.bias",
    }  # fmt: skip


def test_the_trial_changes_neither_the_network_nor_any_draw():
    from fedbary.models import build
    from fedbary.tasks._network import require_usable

    net = build("own_models:normed", SHAPE, 3, 0, 1)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    state = torch.get_rng_state()
    require_usable("normed", net, SHAPE, (3,))
    assert torch.equal(torch.get_rng_state(), state) and net.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert all(parameter.grad is None for parameter in net.parameters())
