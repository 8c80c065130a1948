"""FedAG: the Gaussian over the clients, what it predicts, and the noise it leaves."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from refusals import refused
from torch import Generator, nn

from fedbary import Posterior
from fedbary.aggregation import aggregate
from fedbary.methods import Reply, Server
from fedbary.methods.fedag import ESTIMATORS, MIN_LOG_VAR, FedAG, fit_gaussian, stacked
from fedbary.predictive import Predictive
from fedbary.predictive.networks import drawn
from fedbary.predictive.predictor import Draws, MonteCarlo, forecast, linear_forecast
from fedbary.predictive.regression import NoiseSums, noise_sums
from fedbary.variational.regressor import Regressor

clients = arrays(np.float64, (5, 3), elements=st.floats(-100, 100, width=32))
shares = st.lists(st.floats(0.1, 10), min_size=5, max_size=5)


def networks(count, features=3, hidden=0, noise="none"):
    models = [Regressor(features, hidden, noise=noise) for _ in range(count)]
    for seed, model in enumerate(models):
        model.reset(0.0, seed)
    return models, stacked([model.state_dict() for model in models])


def rows(count, features=3, seed=0):
    return torch.randn(count, features, generator=Generator().manual_seed(seed))


# --- the Gaussian ------------------------------------------------------------------------------


@given(clients)
def test_equal_weights_give_numpy_s_mean_and_variance(values):
    for estimator, correction in (("population", 0), ("sample", 1)):
        posterior = fit_gaussian({"w": torch.from_numpy(values)}, estimator=estimator)
        var = values.var(0, ddof=correction)
        np.testing.assert_allclose(posterior.mean["w"], values.mean(0), atol=1e-12)
        np.testing.assert_allclose(
            posterior.log_var["w"].exp(), np.maximum(var, math.exp(MIN_LOG_VAR)), rtol=1e-6
        )


@given(clients, shares, st.permutations(range(5)))
def test_order_of_clients_does_not_matter(values, weights, order):
    for estimator in ESTIMATORS:
        a = fit_gaussian({"w": torch.from_numpy(values)}, weights, estimator)
        shuffled = torch.from_numpy(values[list(order)])
        b = fit_gaussian({"w": shuffled}, [weights[k] for k in order], estimator)
        torch.testing.assert_close(a.mean["w"], b.mean["w"], rtol=1e-9, atol=1e-9)
        # No relative agreement below the rounding of the mean.
        torch.testing.assert_close(
            a.log_var["w"].exp(), b.log_var["w"].exp(), rtol=1e-6, atol=1e-12
        )


@given(clients, shares)
def test_population_is_the_forward_kl_barycentre_of_point_masses(values, weights):
    points = [
        Posterior({"w": torch.from_numpy(v)}, {"w": torch.full((3,), -80.0).double()})
        for v in values
    ]
    fklb = aggregate("FKLB", points, weights)
    ours = fit_gaussian({"w": torch.from_numpy(values)}, weights, "population")
    torch.testing.assert_close(ours.mean["w"], fklb.mean["w"], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(
        ours.log_var["w"].exp(), fklb.log_var["w"].exp(), rtol=1e-6, atol=1e-10
    )


def test_sample_is_unbiased_under_any_weights():
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0])
    draws = 3 * rows(4, 200_000).double()
    posterior = fit_gaussian({"w": draws}, weights.tolist())
    assert abs(posterior.log_var["w"].exp().mean() / 9 - 1) < 0.02


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_one_client_or_agreement_is_a_point(estimator):
    for values in (torch.ones(1, 2), torch.full((4, 2), 0.1)):
        posterior = fit_gaussian({"w": values}, estimator=estimator)
        torch.testing.assert_close(posterior.mean["w"], values[0])
        assert (posterior.log_var["w"] <= -35).all() and posterior.log_var["w"].isfinite().all()


def test_what_does_not_fit_is_refused():
    values = {"w": torch.ones(3, 2)}
    refused("sample, population", fit_gaussian, values, estimator="unbiased")
    refused("one per client; there are 3", fit_gaussian, values, [1, 1])


# --- forecasts ---------------------------------------------------------------------------------


@pytest.mark.parametrize("hidden", [0, 7])
def test_bootstrap_is_the_moments_of_the_networks_answers(hidden):
    models, both = networks(4, hidden=hidden)
    x = rows(9)
    answers = torch.stack([model(x)[:, 0] for model in models]).detach().double()
    found = forecast(both, x, noise_var=0.3)
    torch.testing.assert_close(found.mean, answers.mean(0), rtol=1e-6, atol=1e-6)
    expected = answers.square().mean(0) - answers.mean(0).square()
    torch.testing.assert_close(found.epistemic, expected, rtol=1e-4, atol=1e-6)
    assert (found.aleatoric == 0.3).all()
    torch.testing.assert_close(found.var, found.epistemic + 0.3)
    assert (forecast(both, x).aleatoric == 0).all()


@pytest.mark.parametrize("noise", [0.25, "learned", "heteroscedastic"])
def test_noise_that_networks_carry_is_averaged(noise):
    models, both = networks(3, hidden=5, noise=noise)
    x = rows(6)
    expected = torch.stack([model(x)[:, 1].exp() for model in models]).mean(0).detach().double()
    torch.testing.assert_close(forecast(both, x).aleatoric, expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(forecast(both, x, 1.5).aleatoric, expected + 1.5, rtol=1e-5, atol=0)


def test_closed_form_is_the_limit_of_monte_carlo():
    _, both = networks(10)
    posterior, x = fit_gaussian(both), rows(5)
    exact = linear_forecast(posterior, x, noise_var=0.5)
    drawn_networks = drawn(posterior, 200_000, Generator().manual_seed(0))
    monte_carlo = forecast(drawn_networks, x, noise_var=0.5)
    torch.testing.assert_close(monte_carlo.mean, exact.mean, rtol=0, atol=0.01)
    torch.testing.assert_close(monte_carlo.epistemic, exact.epistemic, rtol=0.02, atol=0)
    assert (exact.aleatoric == 0.5).all()


def test_closed_form_takes_deterministic_tensors_as_points():
    model = Regressor(3, 0, bayesian_layers=1, noise=0.2)
    model.reset(-2.0, 0)
    found = linear_forecast(Posterior.from_state_dict(model.state_dict()), x := rows(4))
    expected = math.exp(-2) * x.double().square().sum(1)
    torch.testing.assert_close(found.epistemic, expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(found.mean, model(x)[:, 0].detach().double(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.aleatoric, torch.full((4,), 0.2).double())
    _, both = networks(2, hidden=3)
    refused("closed form", lambda: linear_forecast(fit_gaussian(both), rows(4)))


def test_drawn_networks_have_the_posterior_s_moments():
    model = Regressor(2, 3, bayesian_layers=1)
    model.reset(-1.0, 0)
    posterior = Posterior.from_state_dict(model.state_dict())
    found = drawn(posterior, 100_000, Generator().manual_seed(0))
    assert set(found) == set(posterior.mean)
    for name, values in found.items():
        torch.testing.assert_close(values.mean(0), posterior.mean[name], rtol=0, atol=0.02)
        var = posterior.log_var[name].exp() if name in posterior.log_var else 0 * values[0]
        torch.testing.assert_close(values.var(0), var, rtol=0.05, atol=1e-6)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_draws_have_the_clients_mean_moments_of_batch_norm_and_answer_numbers(estimator):
    """Trap: a variance drawn from the clients' spread is negative, and its root no number."""
    networks = []
    for seed in range(4):
        torch.manual_seed(seed)
        networks.append(nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)))
        networks[-1][1].running_var.fill_(10.0**seed)
    replies = [Reply(str(k), 1.0, net.state_dict()) for k, net in enumerate(networks)]
    method, server = FedAG(estimator), Server(networks[0].state_dict(), {})
    posterior = method.predictive(*method.aggregate(server, replies)).posterior
    assert posterior.log_var.keys() == {name for name, _ in networks[0].named_parameters()}
    generator = Generator().manual_seed(0)
    held = Predictive(networks[0].state_dict(), posterior)
    found = MonteCarlo().predict(networks[0], rows(20), held, Draws(50, generator))
    assert found.probs.isfinite().all()
    assert (drawn(posterior, 9, generator)["1.running_var"] == 1111 / 4).all()


# --- noise -------------------------------------------------------------------------------------


def test_noise_is_found_where_clients_networks_agree():
    """Networks of the true function and a spread of their own: what remains is the noise."""
    generator = Generator().manual_seed(0)
    count, noise_var, spread = 20, 0.4, 0.2
    weight = torch.ones(count, 1, 3)
    bias = spread * torch.randn(count, 1, generator=generator)
    both = {"output.weight": weight, "output.bias": bias - bias.mean()}
    total = NoiseSums(0, 0.0, 0.0)
    for own in range(count):
        x = rows(2000, seed=own)
        noise = math.sqrt(noise_var) * torch.randn(2000, generator=generator)
        total = total + noise_sums(both, x, x.sum(1) + noise, own)
    assert total.count == 20 * 2000
    assert abs(total.noise_var - (noise_var - spread**2)) < 0.03


def test_a_client_s_own_network_is_left_out():
    _, both = networks(3)
    x, y = rows(5), rows(5, 1)[:, 0]
    without = {name: tensor[[0, 2]] for name, tensor in both.items()}
    assert noise_sums(both, x, y, own=1) == noise_sums(without, x, y)
    alone = {name: tensor[:1] for name, tensor in both.items()}
    assert noise_sums(alone, x, y, own=0) == noise_sums(alone, x, y)
    assert noise_sums(alone, x, y).spread == 0


def test_noise_variance_is_above_0():
    assert NoiseSums(10, 5.0, 20.0).noise_var == pytest.approx(0.005)
    assert NoiseSums(10, 5.0, 2.0).noise_var == pytest.approx(0.3)
