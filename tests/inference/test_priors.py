"""What a prior does to a local posterior: narrow, strong, or a factor without normalisation."""

import math

import pytest
import torch
from known_posteriors import (
    OF_ANY_NETWORK,
    SCALED,
    Regression,
    classification,
    cnn,
    exact_mean_field,
    gaussian_nll,
    regression_data,
)

from fedbary import Posterior
from fedbary.gaussian import Factor
from fedbary.inference import Local, Training, local_method


@pytest.mark.parametrize("name", ["variational", "natural_gradient", "ivon"])
def test_under_a_factor_weight_decay_is_no_second_prior(name):
    x, y = regression_data()
    factor = Factor({"linear.weight": torch.zeros(1, 4)}, {"linear.weight": torch.ones(1, 4)})
    found = []
    for weight_decay in (0.0, 0.1):
        model = Regression(x.shape[1])
        training = Training(epochs=3, weight_decay=weight_decay)
        local_method(name)(Local(model, x, y, nll=gaussian_nll, training=training, prior=factor))
        found.append(model.linear.weight_mean.detach().clone())
    assert torch.equal(*found)


@pytest.mark.parametrize("name", OF_ANY_NETWORK)
def test_under_a_factor_the_kl_lacks_only_the_normalisation(name):
    """E_q[log q − log f] and KL(q ‖ N(0, 1)) lie ½ log 2π a weight apart."""
    x, y = classification()
    first, second = cnn(), cnn()
    weights = {n: t for n, t in Posterior.from_state_dict(first.state_dict()).log_var.items()}
    proper = local_method(name)(Local(first, x, y))["kl"]
    unnormalised = local_method(name)(Local(second, x, y, prior=Factor.normal(1.0, weights)))
    count = sum(tensor.numel() for tensor in weights.values())
    constant = 0.5 * count * math.log(2 * math.pi)
    assert proper - unnormalised["kl"] == pytest.approx(constant, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCALED)
def test_a_strong_kl_pulls_to_the_prior_whatever_the_data(name):
    x, y = classification(64)
    model = cnn()
    training = Training(epochs=300, lr=0.001, log_var_lr=0.05, kl_weight=1000.0)
    local_method(name)(Local(model, x, y, training=training, prior=0.3))
    log_var = model.fc2.weight_log_var.mean().item()
    assert log_var == pytest.approx(2 * math.log(0.3), abs=0.1)


@pytest.mark.in_turn
@pytest.mark.slow
@pytest.mark.parametrize("name", OF_ANY_NETWORK)
@pytest.mark.parametrize("log_var", [-3.0, -11.0, -20.0])
def test_a_prior_however_narrow_holds_the_means_and_does_not_throw_them_about(name, log_var):
    """Its curvature, e²⁰/40, is thousands of times what SGD at this rate would bear."""
    x, y = regression_data(40)
    model = Regression(4)
    mean, scale = torch.full((1, 4), 0.3), torch.full((1, 4), log_var)
    prior = Posterior({"linear.weight": mean}, {"linear.weight": scale})
    training = Training(200, 20, lr=0.005, momentum=0.9, log_var_lr=0.01)
    local_method(name)(Local(model, x, y, nll=gaussian_nll, training=training, prior=prior))
    precision = torch.full((4,), math.exp(-log_var), dtype=torch.float64)
    mean, _ = exact_mean_field(x, y, 0.3 * precision, precision)
    found = model.linear.weight_mean[0].detach().double()
    assert ((found - mean).abs() < 0.2 * (mean - 0.3).abs() + 0.02).all()
