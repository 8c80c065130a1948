"""Methods that see all data at once are what they say, and see what the clients see together."""

import math

import pytest
import torch
from torch import Generator

from fedbary.data.deal import evaluation_data, training_data
from fedbary.inference import Training
from fedbary.scores.regression import score
from fedbary.settings.config import resolve
from fedbary.tasks import task_of
from findings.regression import central
from findings.regression.central import bayesian_linear, deep_ensemble, mean_field


def data(count=60, features=3, noise=0.3, seed=0):
    generator = Generator().manual_seed(seed)
    x = torch.randn(count, features, generator=generator)
    return x, x.sum(1) + noise * torch.randn(count, generator=generator)


def test_bayesian_linear_regression_is_the_exact_posterior():
    x, y = data(80)
    x, y = x - x.mean(0), y - y.mean()
    found = bayesian_linear(x, y, x[:5])
    from sklearn.linear_model import BayesianRidge

    precisions = BayesianRidge().fit(x.double().numpy(), y.double().numpy())
    beta, alpha = precisions.alpha_, precisions.lambda_
    x = x.double()
    cov = torch.linalg.inv(beta * x.t() @ x + alpha * torch.eye(3).double())
    mean = beta * cov @ x.t() @ y.double()
    torch.testing.assert_close(found.mean, x[:5] @ mean, rtol=1e-4, atol=1e-5)
    expected = ((x[:5] @ cov) * x[:5]).sum(1)
    torch.testing.assert_close(found.epistemic, expected, rtol=0.01, atol=1e-6)
    torch.testing.assert_close(found.aleatoric, torch.full((5,), 1 / beta).double())


@pytest.mark.slow
@pytest.mark.parametrize("method", ["mean_field", "deep_ensemble"])
def test_networks_that_see_all_data_find_function_and_noise(method):
    x, y = data(600, noise=0.5)
    new, y_new = data(400, noise=0.5, seed=1)
    if method == "mean_field":
        training = Training(epochs=60, batch_size=20, lr=0.01, log_var_lr=0.003, kl_weight=0.1)
        found = mean_field(x, y, new, 16, training, seed=0)
    else:
        found = deep_ensemble(x, y, new, 16, 15, 20, 0.01, seed=0)
    scores = score(found, y_new)
    ideal = 0.5 * math.log(2 * math.pi * 0.25) + 0.5
    assert scores["nll"] < ideal + 0.15 and scores["rmse"] < 0.6
    assert 0.8 < scores["coverage_90"] < 0.97
    assert (found.epistemic > 0).all()


@pytest.mark.slow
def test_deep_ensemble_sees_noise_that_depends_on_x():
    generator = Generator().manual_seed(0)
    x = 2 * torch.rand(1000, 1, generator=generator) - 1
    y = torch.where(x[:, 0] > 0, 1.0, 0.1) * torch.randn(1000, generator=generator)
    found = deep_ensemble(x, y, torch.tensor([[-0.5], [0.5]]), 16, 30, 50, 0.01, seed=0)
    quiet, loud = found.aleatoric.sqrt().tolist()
    assert quiet < 0.3 and loud > 0.7


def test_central_methods_see_what_the_clients_see_together():
    settings = resolve({"task": "regression", "clients": 3, "split": 3})
    task = task_of(settings)
    parts = [part(task.held, task.deal) for part in (training_data, evaluation_data)]
    assert [len(y) for _, y in parts] == [398, 44]
    scores = central._fitted(settings, "BLR")
    assert scores["nll"] == pytest.approx(5.4, abs=0.2)
