"""IVON takes the published step, and puts back what it draws."""

import pytest
import torch
from known_posteriors import (
    NOISE_STD,
    Regression,
    classification,
    cnn,
    exact_mean_field,
    gaussian_nll,
    regression_data,
)
from torch import Generator

from fedbary import Posterior
from fedbary.inference import Local, Training, local_method
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
    local_method("ivon")(
        Local(model, x, y, nll=gaussian_nll, training=training, prior=prior, seed=7)
    )

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
    expected = mean - 0.002 / (1 - 0.7) * gain.clamp(max=1) * direction
    assert (gain > 1).any() and (gain < 1).any()
    torch.testing.assert_close(
        model.linear.weight_log_var.detach()[0].double(),
        -(ess * (h + delta)).log(),
        rtol=0,
        atol=2e-6,
    )
    torch.testing.assert_close(
        model.linear.weight_mean.detach()[0].double(), expected, rtol=1e-5, atol=0
    )


@pytest.mark.slow
@pytest.mark.parametrize(("lr", "momentum"), [(0.006, 0.9), (0.012, 0.9), (0.05, 0.5)])
def test_it_is_right_at_the_rates_at_which_the_natural_gradient_is(lr, momentum):
    """Trap: with ten times lr for a weight that looks flat, forty weights ran away to NaN."""
    x, y = regression_data(repeats=10)
    ones = torch.ones(40, dtype=torch.float64)
    mean, var = exact_mean_field(x, y, 0 * ones, ones)
    off, narrow = {}, {}
    for name in ("natural_gradient", "ivon"):
        model = Regression(40)
        training = Training(15, 32, lr=lr, momentum=momentum, log_var_lr=0.01, kl_weight=1.0)
        local_method(name)(Local(model, x, y, nll=gaussian_nll, training=training))
        found = model.linear.weight_mean.detach()[0].double()
        off[name] = float(((found - mean) / var.sqrt()).abs().mean())
        log_var = model.linear.weight_log_var.detach()[0].double()
        narrow[name] = abs(float((log_var - var.log()).mean()))
    assert off["ivon"] < 1.5 * off["natural_gradient"] + 0.2
    assert narrow["ivon"] < narrow["natural_gradient"] + 0.5


def test_ivon_leaves_no_draw_in_the_model_where_a_step_fails():
    x, y = classification()
    model = cnn()
    before = model.fc1.weight_mean.detach().clone()

    def fail(output, target):
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        local_method("ivon")(Local(model, x, y, nll=fail))
    assert torch.equal(model.fc1.weight_mean.detach(), before)
