"""Variational layers: what they sample has the mean and the variance that the weights imply."""

import pytest
import torch
from torch import Generator
from torch.nn import functional

from fedbary.variational.layers import VariationalLinear, drawing, reset_layer


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


def test_an_input_of_zeros_gives_the_bias_and_finite_gradients():
    layer, x = linear(), torch.zeros(2, 7, requires_grad=True)
    with drawing(layer, seeded()):
        out = layer(x)
    torch.testing.assert_close(out, layer.bias.expand(2, 5))
    out.sum().backward()
    assert torch.isfinite(layer.weight_log_var.grad).all()
    assert (layer.weight_log_var.grad == 0).all()
    assert torch.isfinite(x.grad).all()


def test_initialisation_follows_the_papers_code():
    layer = linear(400, 300, log_var=-9.0)
    assert (layer.weight_log_var == -9).all()
    assert layer.weight_mean.std().item() == pytest.approx(1 / 20, rel=0.02)
    assert layer.weight_mean.mean().item() == pytest.approx(0, abs=1e-3)
