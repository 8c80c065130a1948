"""Local inference finds posteriors that are known, and trains the variances."""

import math

import pytest
import torch
from torch import Generator, nn

from fedbary import Posterior
from fedbary.errors import SettingError
from fedbary.inference import INFERENCE, Training, local_method
from fedbary.layers import VariationalLinear, reset_layer
from fedbary.models import BayesianCNN

NOISE_STD = 0.5


class Regression(nn.Module):
    """y = x w + N(0, NOISE_STD²), Gaussian weights, no bias."""

    def __init__(self, features):
        super().__init__()
        self.linear = VariationalLinear(features, 1)
        reset_layer(self.linear, -4.0, Generator().manual_seed(0))
        nn.init.zeros_(self.linear.bias)
        self.linear.bias.requires_grad_(False)

    def forward(self, x, generator=None):
        return self.linear(x, generator)


def gaussian_nll(output, target):
    return 0.5 * (output[:, 0] - target).square().mean() / NOISE_STD**2


def regression_data(n=400, features=4):
    generator = Generator().manual_seed(1)
    x = torch.randn(n, features, generator=generator) * torch.tensor([2.0, 1.0, 0.5, 0.3])
    w = torch.tensor([1.0, -2.0, 0.5, 3.0])
    return x, x @ w + NOISE_STD * torch.randn(n, generator=generator)


def exact_mean_field(x, y, prior_mean, prior_var):
    """The mean-field optimum: the exact posterior's mean, and one over its precision's diagonal."""
    x, y = x.double(), y.double()
    precision = x.t() @ x / NOISE_STD**2 + torch.diag(1 / prior_var)
    mean = torch.linalg.solve(precision, x.t() @ y / NOISE_STD**2 + prior_mean / prior_var)
    return mean, 1 / precision.diag()


@pytest.mark.parametrize("name", INFERENCE)
@pytest.mark.parametrize("informed", [False, True])
def test_recovers_the_posterior_of_bayesian_linear_regression(name, informed):
    x, y = regression_data()
    model = Regression(x.shape[1])
    if informed:
        prior_mean, prior_var = (
            torch.tensor([0.5, -1.0, 0.0, 1.0]),
            torch.tensor([0.1, 0.01, 1.0, 4.0]),
        )
        prior = Posterior(
            {"linear.weight": prior_mean[None]}, {"linear.weight": prior_var.log()[None]}
        )
    else:
        prior_mean, prior_var, prior = torch.zeros(4), torch.ones(4), 1.0
    fit = local_method(name)
    for lr, log_var_lr in ((0.01, 0.02), (0.001, 0.002), (0.0002, 0.0005)):
        training = Training(
            epochs=1500, batch_size=400, lr=lr, momentum=0.9, log_var_lr=log_var_lr, kl_weight=1.0
        )
        fit(model, x, y, prior, training, seed=0, nll=gaussian_nll)
    mean, var = exact_mean_field(x, y, prior_mean.double(), prior_var.double())
    found_mean = model.linear.weight_mean.detach()[0].double()
    found_log_var = model.linear.weight_log_var.detach()[0].double()
    assert ((found_mean - mean).abs() < 0.15 * var.sqrt()).all()
    torch.testing.assert_close(found_log_var, var.log(), rtol=0, atol=0.1)


def classification(n=256):
    generator = Generator().manual_seed(0)
    x = torch.rand(n, 1, 8, 8, generator=generator)
    return x, torch.randint(0, 4, (n,), generator=generator)


def cnn(n=3):
    model = BayesianCNN((1, 8, 8), 4, n)
    model.reset(init_log_var=-6.0, seed=0)
    return model


def test_log_variances_train_and_zero_rate_freezes_them():
    x, y = classification()
    for rate, moves in ((0.01, True), (0.0, False)):
        model = cnn()
        local_method("variational")(model, x, y, 1.0, Training(epochs=5, log_var_lr=rate), seed=0)
        moved = (model.fc1.weight_log_var + 6).abs().mean().item()
        assert moved > 0.1 if moves else moved == 0


def test_without_gaussian_tensors_it_is_sgd_with_momentum_and_weight_decay():
    x, y = classification()
    training = Training(epochs=2, batch_size=50, lr=0.05, momentum=0.8, weight_decay=0.01)
    ours, reference = cnn(0), cnn(0)
    local_method("variational")(ours, x, y, 1.0, training, seed=3)
    order = Generator().manual_seed(3)
    optimizer = torch.optim.SGD(reference.parameters(), 0.05, momentum=0.8, weight_decay=0.01)
    for _ in range(2):
        for indices in torch.randperm(len(x), generator=order).split(50):
            optimizer.zero_grad()
            nn.functional.cross_entropy(reference(x[indices]), y[indices]).backward()
            optimizer.step()
    for name, tensor in ours.state_dict().items():
        torch.testing.assert_close(tensor, reference.state_dict()[name], rtol=1e-4, atol=1e-6)


def test_reported_kl_is_the_closed_form():
    from fedbary.gaussian import kl_divergence

    x, y = classification()
    model = cnn()
    metrics = local_method("variational")(model, x, y, 0.5, Training(), seed=0)
    q = Posterior.from_state_dict(model.state_dict())
    prior = Posterior(
        {n: torch.zeros_like(t) if n in q.log_var else t for n, t in q.mean.items()},
        {n: torch.full_like(t, 2 * math.log(0.5)) for n, t in q.log_var.items()},
    )
    assert metrics["kl"] == pytest.approx(kl_divergence(q, prior), rel=1e-5)


def test_a_strong_kl_pulls_to_the_prior_whatever_the_data():
    x, y = classification(64)
    model = cnn()
    training = Training(epochs=300, lr=0.001, log_var_lr=0.05, kl_weight=1000.0)
    local_method("variational")(model, x, y, 0.3, training, seed=0)
    log_var = model.fc2.weight_log_var.mean().item()
    assert log_var == pytest.approx(2 * math.log(0.3), abs=0.1)


def test_one_seed_one_result_and_the_prior_is_left_alone():
    x, y = classification()
    prior = Posterior.from_state_dict({k: v.clone() for k, v in cnn().state_dict().items()})
    before = {name: tensor.clone() for name, tensor in prior.mean.items()}
    results = []
    for seed in (0, 0, 1):
        model = cnn()
        local_method("variational")(model, x, y, prior, Training(), seed=seed)
        results.append(model.state_dict())
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])
    assert not torch.equal(results[0]["fc1.weight_mean"], results[2]["fc1.weight_mean"])
    assert all(torch.equal(prior.mean[name], before[name]) for name in before)


def test_an_unknown_method_is_refused_with_the_names():
    with pytest.raises(SettingError, match="variational"):
        local_method("magic")
