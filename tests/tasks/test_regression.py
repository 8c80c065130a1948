"""Regression networks and their training."""

import math

import pytest
import torch
from known_posteriors import OF_ANY_NETWORK
from torch import Generator
from torch.nn.functional import mse_loss

from fedbary import Posterior
from fedbary.errors import SettingError
from fedbary.gaussian import LOG_VAR_SUFFIX
from fedbary.inference import Local, Training, local_method
from fedbary.methods._fast_sgd import fit
from fedbary.settings.config import resolve
from fedbary.variational.regressor import Regressor, gaussian_nll, outputs


def data(count=60, features=3, noise=0.3, seed=0):
    generator = Generator().manual_seed(seed)
    x = torch.randn(count, features, generator=generator)
    return x, x.sum(1) + noise * torch.randn(count, generator=generator)


def network(hidden=8, features=3, **more):
    model = Regressor(features, hidden, **more)
    model.reset(-5.0, 0)
    return model


# --- networks ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hidden", "bayesian_layers", "gaussian"),
    [
        (0, 0, set()),
        (0, 1, {"output.weight"}),
        (50, 0, set()),
        (50, 1, {"output.weight"}),
        (50, 2, {"hidden.weight", "output.weight"}),
    ],
)
def test_names_say_which_tensors_are_gaussian(hidden, bayesian_layers, gaussian):
    posterior = Posterior.from_state_dict(
        network(hidden, 4, bayesian_layers=bayesian_layers).state_dict()
    )
    layers = ("hidden", "output") if hidden else ("output",)
    points = {f"{layer}.{part}" for layer in layers for part in ("weight", "bias")}
    assert set(posterior.mean) == points | {"log_noise_var"}
    assert set(posterior.log_var) == gaussian


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"features": 0}, "features: 0"),
        ({"hidden": -1}, "hidden_units: -1"),
        ({"bayesian_layers": 3}, "0 to the 2 layers"),
        ({"hidden": 0, "bayesian_layers": 2}, "0 to the 1 layers"),
        ({"noise": 0.0}, "noise: 0.0"),
        ({"noise": "some"}, "noise: 'some'"),
    ],
)
def test_impossible_networks_are_refused(arguments, match):
    with pytest.raises(SettingError, match=match):
        Regressor(**{"features": 3, **arguments})


def test_noise_is_given_learned_of_the_inputs_or_none():
    x = torch.randn(5, 3)
    assert network(noise="none")(x).shape == (5, 1)
    assert network(noise="heteroscedastic")(x)[:, 1].std() > 0
    given, learned = network(noise=0.5), network()
    torch.testing.assert_close(given(x)[:, 1], torch.full((5,), math.log(0.5)))
    torch.testing.assert_close(learned(x)[:, 1], torch.zeros(5))
    assert "log_noise_var" not in dict(given.named_parameters())
    assert not any(key.endswith(LOG_VAR_SUFFIX) for key in given.state_dict())


def test_gaussian_nll_is_torch_s():
    answers, y = torch.randn(20, 2), torch.randn(20)
    expected = torch.nn.functional.gaussian_nll_loss(
        answers[:, 0], y, answers[:, 1].exp(), full=True, eps=1e-12
    )
    torch.testing.assert_close(gaussian_nll(answers, y), expected)


@pytest.mark.parametrize("hidden", [0, 6])
@pytest.mark.parametrize("noise", ["none", "learned", "heteroscedastic"])
def test_stacked_networks_answer_as_each_does(hidden, noise):
    models = [network(hidden, noise=noise) for _ in range(3)]
    for seed, model in enumerate(models):
        model.reset(0.0, seed)
    stacked = {
        name: torch.stack([model.state_dict()[name] for model in models])
        for name in models[0].state_dict()
    }
    x = torch.randn(5, 3)
    together = torch.stack([model(x) for model in models])
    torch.testing.assert_close(outputs(stacked, x), together)
    each = torch.randn(3, 5, 3)
    apart = torch.stack([model(own) for model, own in zip(models, each, strict=True)])
    torch.testing.assert_close(outputs(stacked, each), apart)


def is_for_regressions(name):
    try:
        resolve({"protocol": "regression-vi", "inference": name})
    except SettingError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("name", list(filter(is_for_regressions, OF_ANY_NETWORK)))
def test_every_local_method_fits_a_network_and_its_noise(name):
    x, y = data(600, noise=0.5)
    model = network(16, bayesian_layers=2)
    training = Training(epochs=60, batch_size=20, lr=0.01, log_var_lr=0.003, kl_weight=0.1)
    result = local_method(name)(Local(model, x, y, nll=gaussian_nll, training=training))
    assert abs(float(model.log_noise_var.detach().exp()) / 0.25 - 1) < 0.3
    assert result["train_nll"] < 1.0


# --- SGD ---------------------------------------------------------------------------------------


def plain(model, x, y, epochs, batch_size, lr, seed):
    order = Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr)
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=order).split(batch_size):
            optimizer.zero_grad()
            mse_loss(model(x[rows])[:, 0], y[rows]).backward()
            optimizer.step()


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [0, 1, 8])
@pytest.mark.parametrize("batch_size", [1, 7, 60])
def test_undamped_it_is_plain_sgd(hidden, batch_size):
    x, y = (tensor.double() for tensor in data())
    ours, theirs = (network(hidden, noise="none").double() for _ in range(2))
    result = fit(ours, x, y, 3, batch_size, 0.01, seed=5, damped=False)
    plain(theirs, x, y, 3, batch_size, 0.01, seed=5)
    for name, tensor in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], tensor, rtol=1e-9, atol=1e-12)
    assert result["train_mse"] == pytest.approx(mse_loss(theirs(x)[:, 0], y).item())


@pytest.mark.parametrize("hidden", [0, 8])
@pytest.mark.parametrize("batch_size", [1, 7])
def test_damped_step_is_sgd_at_the_rate_that_its_gradients_allow(hidden, batch_size):
    x, y = (tensor.double() for tensor in data(batch_size))
    ours, theirs = (network(hidden, noise="none").double() for _ in range(2))
    fit(ours, x, y, 1, batch_size, 0.7, seed=5)
    norms = sum(
        gradient.square().sum()
        for row in x
        for gradient in torch.autograd.grad(theirs(row[None])[0, 0], list(theirs.parameters()))
    )
    rate = 0.7 / (1 + 2 * 0.7 / batch_size * float(norms))
    plain(theirs, x, y, 1, batch_size, rate, seed=5)
    for name, tensor in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], tensor, rtol=1e-9, atol=1e-12)


def test_damped_step_of_a_linear_model_is_the_proximal_one():
    """It minimises (ŷ − y)² + ‖w − w₀‖²/(2 lr): there the gradient is 0."""
    (x, y), lr = data(1), 3.0
    x, y = x.double(), y.double()
    before, after = (network(0, noise="none").double() for _ in range(2))
    fit(after, x, y, 1, 1, lr, seed=0)
    after.zero_grad()
    (after(x)[0, 0] - y[0]).square().backward()
    for old, new in zip(before.parameters(), after.parameters(), strict=True):
        pull = (new - old).detach() / lr
        torch.testing.assert_close(new.grad, -pull, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [0, 8])
def test_a_row_far_out_diverges_plain_sgd_and_not_the_damped(hidden):
    x, y = data(200)
    x[0] = 1000.0
    model = network(hidden, noise="none")
    fit(model, x, y, 5, 1, 0.01, seed=0)
    assert mse_loss(model(x[1:])[:, 0], y[1:]) < 2 * y.var()
    with pytest.raises(SettingError, match="lr: 0.01; expected.* smaller rate"):
        fit(network(hidden, noise="none"), x, y, 200, 1, 0.01, seed=0, damped=False)


def test_variational_layers_are_refused():
    with pytest.raises(SettingError, match="bayesian_layers: .* 0, for point weights"):
        fit(network(bayesian_layers=1), *data(), 1, 1, 0.01, seed=0)


def test_linear_sgd_finds_least_squares():
    x, y = data(500)
    model = network(0, noise="none")
    for lr in (0.01, 0.0003):
        fit(model, x, y, 50, 1, lr, seed=0)
    design = torch.cat([x, torch.ones(500, 1)], 1)
    expected = torch.linalg.lstsq(design, y[:, None]).solution[:, 0]
    found = torch.cat([model.output.weight[0], model.output.bias])
    torch.testing.assert_close(found.detach(), expected, rtol=0, atol=0.01)


def test_same_seed_same_weights_whatever_the_dtype_of_the_data():
    x, y = data()
    runs = []
    for inputs, targets in ((x, y), (x.double(), y.double()), (x, y)):
        model = network(noise="none")
        if inputs.dtype == torch.float64:
            model = model.double()
        fit(model, inputs, targets, 2, 1, 0.05, seed=1)
        runs.append(model.output.weight.float())
    assert torch.equal(runs[0], runs[2])
    torch.testing.assert_close(runs[0], runs[1], rtol=1e-6, atol=1e-7)
