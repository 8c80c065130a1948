"""The conversion of a module: what stays, what is drawn, what is refused."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
from torch import Generator, nn
from torch.nn import functional

from fedbary import Posterior
from fedbary.models import MODELS, build
from fedbary.variational.layers import (
    VariationalConv2d,
    VariationalLinear,
    drawing,
    gaussian_layers,
    sample_weights,
    variational,
)


def seeded(seed=0):
    return Generator().manual_seed(seed)


@st.composite
def convolutions(draw):
    groups = draw(st.sampled_from([1, 2]))
    pair = st.tuples(st.integers(1, 3), st.integers(1, 3))
    stride, mode = draw(pair), draw(st.sampled_from(["zeros", "reflect", "circular"]))
    padding = draw(st.one_of(st.just("valid"), st.tuples(st.integers(0, 2), st.integers(0, 2))))
    if stride == (1, 1) and draw(st.booleans()):
        padding = "same"
    torch.manual_seed(draw(st.integers(0, 99)))
    return nn.Conv2d(
        2 * groups, 3 * groups, draw(pair), stride, padding, draw(pair), groups,
        bias=draw(st.booleans()), padding_mode=mode,
    )  # fmt: skip


def drawn_weight(layer, seed):
    noise = torch.empty_like(layer.weight_mean).normal_(generator=seeded(seed))
    return layer.weight_mean + (layer.weight_log_var / 2).exp() * noise


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@given(plain=convolutions())
def test_a_convolution_keeps_all_it_is_told_and_runs_with_the_drawn_weights(plain):
    layer = variational(plain, last=1, init_log_var=-1.0)
    x = torch.randn(2, plain.in_channels, 9, 8, generator=seeded(1))
    torch.testing.assert_close(layer(x), plain(x))
    with drawing(layer, seeded(5)), torch.no_grad():
        found = layer(x)
    explicit = copy.deepcopy(plain)
    explicit.weight.data = drawn_weight(layer, 5).detach()
    torch.testing.assert_close(found, explicit(x), rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        weights = sample_weights(layer, 3, seeded(2))
        many = layer.forward_with(x[None], weights)
        own = layer.forward_with(torch.stack([x, x, x]), weights)
        for index, weight in enumerate(weights):
            explicit.weight.data = weight
            torch.testing.assert_close(many[index], explicit(x), rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(own[index], explicit(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(4, 7), (2, 3, 7), (7,)])
def test_a_linear_layer_samples_outputs_of_any_leading_shape_with_exact_gradients(bias, shape):
    torch.manual_seed(0)
    layer = variational(nn.Linear(7, 5, bias=bias), last=1, init_log_var=-1.0)
    x = torch.randn(shape, generator=seeded(1), requires_grad=True)
    target = torch.randn(*shape[:-1], 5, generator=seeded(2))
    parameters = [x, *layer.parameters()]
    with drawing(layer, seeded(9)):
        out = layer(x)
    written = torch.autograd.grad((out * target).sum(), parameters)
    noise = torch.empty(target[..., 0].numel(), 5).normal_(generator=seeded(9)).view_as(target)
    std = functional.linear(x.square(), layer.weight_log_var.exp()).sqrt()
    plain = functional.linear(x, layer.weight_mean, layer.bias) + std * noise
    torch.testing.assert_close(out, plain)
    automatic = torch.autograd.grad((plain * target).sum(), parameters)
    for ours, theirs in zip(written, automatic, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


class Twice(nn.Module):
    """One layer object under two names, one in a list, attention, and a norm."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 6, bias=False)
        self.again = self.first
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.rest = nn.ModuleList([nn.LayerNorm(6), nn.Linear(6, 6)])

    def forward(self, x):
        x = self.again(self.first(x).relu())
        return self.rest[1](self.rest[0](self.attention(x, x, x)[0]))


def test_zero_variance_is_the_plain_module_and_the_given_module_is_left_alone():
    torch.manual_seed(0)
    for plain, shape in (
        (Twice(), (2, 3, 6)),
        (build("resnet20", (3, 16, 16), 4, 0), (2, 3, 16, 16)),
    ):
        x, before = torch.randn(shape), copy.deepcopy(plain.state_dict())
        layers = [m for m in plain.modules() if type(m) in (nn.Linear, nn.Conv2d)]
        net = variational(plain, last=len(layers), init_log_var=-80.0)
        with drawing(net, seeded()):
            torch.testing.assert_close(net(x), plain(x), rtol=1e-4, atol=1e-5)
        assert plain.state_dict().keys() == before.keys()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.zero_()
        assert all(torch.equal(tensor, before[name]) for name, tensor in plain.state_dict().items())


def test_a_layer_under_two_names_is_one_layer_and_attention_keeps_its_own():
    net = variational(Twice(), last=2)
    assert net.first is net.again and isinstance(net.first, VariationalLinear)
    assert isinstance(net.rest[1], VariationalLinear)
    assert list(gaussian_layers(net)) == ["first", "rest.1"]
    refused("bayesian_layers: 3; expected .* 0 to 2", lambda: variational(Twice(), last=3))


def test_names_and_last_convert_those_layers_alone_and_means_are_the_weights():
    torch.manual_seed(0)
    plain = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 4)
    ).eval()
    by_name = variational(plain, names=["0"], init_log_var=-3.0)
    assert isinstance(by_name[0], VariationalConv2d) and type(by_name[3]) is nn.Linear
    assert list(by_name.state_dict())[:3] == ["0.weight_mean", "0.weight_log_var", "0.bias"]
    posterior = Posterior.from_state_dict(by_name.state_dict())
    assert torch.equal(posterior.mean["0.weight"], plain[0].weight)
    assert (posterior.log_var["0.weight"] == -3).all()
    assert posterior.mean.keys() == plain.state_dict().keys()
    both = variational(by_name, last=2, init_log_var=-5.0)
    assert list(gaussian_layers(both)) == ["0", "3"]
    assert (both[0].weight_log_var == -3).all() and (both[3].weight_log_var == -5).all()
    assert not both[0].training
    for name in ("1", "4", "conv"):
        refused(f"layer: '{name}'; expected 0, 3", variational, plain, names=[name])


def test_a_weight_that_two_layers_share_is_refused():
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    net[1].weight = net[0].weight
    refused("shares its weight", variational, net, last=1)


@pytest.mark.parametrize("arguments", [{}, {"last": 1, "names": ["0"]}])
def test_either_last_or_names(arguments):
    with pytest.raises(ValueError, match="either last"):
        variational(nn.Sequential(nn.Linear(2, 2)), **arguments)


def test_dtype_memory_format_and_frozen_weights_are_kept():
    plain = nn.Conv2d(4, 4, 3).double().to(memory_format=torch.channels_last)
    plain.weight.requires_grad_(False)
    layer = variational(plain, last=1)
    for tensor in (layer.weight_mean, layer.weight_log_var):
        assert tensor.dtype == torch.float64 and not tensor.requires_grad
        assert tensor.is_contiguous(memory_format=torch.channels_last)
    assert layer.bias.requires_grad


@pytest.mark.parametrize("name", MODELS)
def test_every_network_is_built_from_its_seed_alone(name):
    torch.manual_seed(1)
    state = torch.get_rng_state()
    one, same, other = (build(name, (3, 16, 16), 4, seed, 1).state_dict() for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert any(not torch.equal(one[key], other[key]) for key in one)
    net = build(name, (3, 16, 16), 4, 0, 1)
    assert net(torch.rand(2, 3, 16, 16)).shape[:2] == (2, 4)
    assert len(gaussian_layers(net)) == 1


def test_resnet20_has_the_published_size():
    """He et al. 2016, table 6: 0.27 million parameters, twenty layers with weights."""
    net = build("resnet20", (3, 32, 32), 10, seed=0)
    layers = [m for m in net.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    assert len(layers) == 20
    assert sum(p.numel() for p in net.parameters()) == 269_722
    refused("width", build, "resnet20", (3, 32, 32), 10, 0, parameters={"width": 12})


def test_a_network_of_ones_own_is_imported_by_name_and_tried():
    import own_models

    for function, shape in (("lazy", (1, 4, 4)), ("normed", (1, 8, 8))):
        net = build(f"own_models:{function}", shape, 3, 0, 1)
        assert net.training and net(torch.rand(2, *shape)).shape == (2, 3)
    for name, said in (
        ("own_models:absent", "no attribute 'absent'"),
        ("no_such_module:make", "No module named 'no_such_module'"),
        ("own_models:number", "returns an nn.Module, not a int"),
        ("own_models:wide", r"shape \(1, 3\), not \(1, 4\)"),
        ("own_models:several", "answers with one tensor, not a tuple"),
        ("own_models:probable", "answers with logits, without a softmax"),
        ("own_models", "package.module:factory"),
    ):
        refused(said, build, name, (1, 8, 8), 3, 0)
    assert own_models.number((1,), 3) == 3
