"""Variational layers: what they sample has the mean and the variance that the weights imply."""

import pytest
import torch
from torch import Generator
from torch.nn import functional

from fedbary.variational.layers import (
    VariationalConv2d,
    VariationalLinear,
    reset_layer,
    sample_weights,
)
from fedbary.variational.noise import drawing


def seeded(seed=0):
    return Generator().manual_seed(seed)


def linear(in_features=7, out_features=5, log_var=-1.0):
    layer = VariationalLinear(in_features, out_features)
    reset_layer(layer, log_var, seeded())
    return layer


@pytest.mark.slow
def test_linear_outputs_have_the_moments_of_the_weights():
    layer, x = linear(), torch.randn(3, 7, generator=seeded(1))
    with torch.no_grad():
        layer.weight_log_var.normal_(generator=seeded(2))
        with drawing(layer, seeded(3)):
            draws = torch.stack([layer(x) for _ in range(20_000)])
        mean = functional.linear(x, layer.weight_mean, layer.bias)
        var = functional.linear(x.square(), layer.weight_log_var.exp())
    standard_error = (var / len(draws)).sqrt()
    assert ((draws.mean(0) - mean).abs() < 5 * standard_error).all()
    torch.testing.assert_close(draws.var(0), var, rtol=0.06, atol=0)


def test_local_reparameterisation_and_sampled_weights_agree_in_distribution():
    layer, x = linear(), torch.randn(3, 7, generator=seeded(1))
    with torch.no_grad():
        weights = sample_weights(layer, 20_000, seeded(4))
        draws = layer.forward_with(x.unsqueeze(0), weights)
        var = functional.linear(x.square(), layer.weight_log_var.exp())
    torch.testing.assert_close(draws.var(0), var, rtol=0.06, atol=0)


def test_gradients_of_the_sampled_linear_layer_are_those_of_autograd():
    layer, x = linear(), torch.randn(4, 7, generator=seeded(1), requires_grad=True)
    target = torch.randn(4, 5, generator=seeded(2))
    parameters = (x, layer.weight_mean, layer.weight_log_var, layer.bias)
    with drawing(layer, seeded(9)):
        written = torch.autograd.grad((layer(x) * target).sum(), parameters)
    noise = torch.empty(4, 5).normal_(generator=seeded(9))
    std = functional.linear(x.square(), layer.weight_log_var.exp()).sqrt()
    plain = functional.linear(x, layer.weight_mean, layer.bias) + std * noise
    automatic = torch.autograd.grad((plain * target).sum(), parameters)
    for ours, theirs in zip(written, automatic, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_an_input_of_zeros_gives_the_bias_and_finite_gradients():
    layer, x = linear(), torch.zeros(2, 7, requires_grad=True)
    with drawing(layer, seeded()):
        out = layer(x)
    torch.testing.assert_close(out, layer.bias.expand(2, 5))
    out.sum().backward()
    assert torch.isfinite(layer.weight_log_var.grad).all()
    assert (layer.weight_log_var.grad == 0).all()
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("shared", [True, False])
def test_grouped_convolution_equals_one_convolution_per_draw(shared):
    layer = VariationalConv2d(3, 4, 5, padding=2)
    reset_layer(layer, -2.0, seeded())
    x = torch.randn(1 if shared else 6, 2, 3, 9, 8, generator=seeded(1))
    with torch.no_grad():
        weights = sample_weights(layer, 6, seeded(2))
        out = layer.forward_with(x, weights)
        for index, weight in enumerate(weights):
            one = functional.conv2d(x[0 if shared else index], weight, layer.bias, padding=2)
            torch.testing.assert_close(out[index], one, rtol=1e-4, atol=1e-5)


def test_convolution_without_variance_is_the_plain_one():
    layer = VariationalConv2d(1, 2, 5)
    reset_layer(layer, -80.0, seeded())
    x = torch.randn(2, 1, 9, 9, generator=seeded(1))
    with drawing(layer, seeded()):
        out = layer(x)
    torch.testing.assert_close(out, functional.conv2d(x, layer.weight_mean, layer.bias))


def test_initialisation_follows_the_papers_code():
    layer = linear(400, 300, log_var=-9.0)
    assert (layer.weight_log_var == -9).all()
    assert layer.weight_mean.std().item() == pytest.approx(1 / 20, rel=0.02)
    assert layer.weight_mean.mean().item() == pytest.approx(0, abs=1e-3)
