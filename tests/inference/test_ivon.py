"""IVON takes the published step, and puts back what it draws."""

import pytest
import torch
from known_posteriors import (
    NOISE_STD,
    Regression,
    classification,
    cnn,
    gaussian_nll,
    regression_data,
)
from torch import Generator

from fedbary import Posterior
from fedbary.inference import Training, local_method
from fedbary.seeds import derive_seed


def test_a_step_of_ivon_is_the_published_formula():
    """One step over all data, in float64 from the text of the method, against the code."""
    x, y = regression_data()
    model = Regression(4)
    mean, var = torch.tensor([0.9, -1.8, 0.4, 2.5]), torch.tensor([2e-4, 1e-3, 4e-3, 9e-3])
    prior_mean, prior_var = torch.tensor([0.5, -1.0, 0.0, 1.0]), torch.tensor([0.5, 1.0, 2.0, 4.0])
    with torch.no_grad():
        model.linear.weight_mean.copy_(mean[None])
        model.linear.weight_log_var.copy_(var.log()[None])
    prior = Posterior({"linear.weight": prior_mean[None]}, {"linear.weight": prior_var.log()[None]})
    training = Training(
        batch_size=400, lr=0.002, momentum=0.7, weight_decay=0.05, log_var_lr=0.01, kl_weight=0.5
    )
    local_method("ivon")(model, x, y, prior, training, seed=7, nll=gaussian_nll)

    noise = Generator().manual_seed(derive_seed(7, "noise"))
    draw = torch.empty(1, 4).normal_(generator=noise)[0].double()
    x, y, mean, var = x.double(), y.double(), mean.double(), var.double()
    ess, beta2 = 400 / 0.5, 0.99
    delta = 1 / (ess * prior_var.double())
    h = 1 / (ess * var) - delta
    theta = mean + var.sqrt() * draw
    grad = x.t() @ (x @ theta - y) / NOISE_STD**2 / 400
    h_hat = ess * (h + delta) * grad * (theta - mean)
    correction = 0.5 * (1 - beta2) ** 2 * (h_hat - h).square() / (h + delta)
    h = beta2 * h + (1 - beta2) * h_hat + correction
    direction = grad + delta * (mean - prior_mean) + 0.05 * mean
    gain = (h + delta).mean() / (h + delta)
    expected = mean - 0.002 / (1 - 0.7) * gain.clamp(max=10) * direction
    assert (gain > 10).any() and (gain < 10).any()
    torch.testing.assert_close(
        model.linear.weight_log_var.detach()[0].double(),
        -(ess * (h + delta)).log(),
        rtol=0,
        atol=2e-6,
    )
    torch.testing.assert_close(
        model.linear.weight_mean.detach()[0].double(), expected, rtol=1e-5, atol=0
    )


def test_ivon_leaves_no_draw_in_the_model_where_a_step_fails():
    x, y = classification()
    model = cnn()
    before = model.fc1.weight_mean.detach().clone()

    def fail(output, target):
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        local_method("ivon")(model, x, y, 1.0, Training(), seed=0, nll=fail)
    assert torch.equal(model.fc1.weight_mean.detach(), before)
