"""Local inference finds posteriors that are known, and trains the variances."""

import itertools
import math

import pytest
import torch
from every_method import NIGHT
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
from torch import Generator, nn

from fedbary import Posterior
from fedbary.errors import SettingError
from fedbary.gaussian import Factor, kl_divergence
from fedbary.inference import INFERENCE, Local, Training, local_method
from fedbary.variational.layers import drawing, variational

NATURAL = ("natural_gradient", "ivon")
"""The methods whose variances take natural-gradient steps."""


KINDS = ("normal", "posterior", "improper factor")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"),
    list(itertools.product(SCALED, KINDS) if NIGHT else zip(SCALED, KINDS, strict=True)),
)
def test_recovers_the_posterior_of_bayesian_linear_regression(name, kind):
    x, y = regression_data()
    model = Regression(x.shape[1])
    shift, precision = torch.zeros(4), torch.ones(4)
    prior = 1.0
    if kind == "posterior":
        precision = torch.tensor([10.0, 100.0, 1.0, 0.25])
        shift = precision * torch.tensor([0.5, -1.0, 0.0, 1.0])
        prior = Posterior(
            {"linear.weight": (shift / precision)[None]}, {"linear.weight": -precision.log()[None]}
        )
    elif kind == "improper factor":
        shift, precision = torch.tensor([30.0, 0.0, -20.0, 5.0]), torch.tensor([-9.0, 0, -4, -0.5])
        prior = Factor({"linear.weight": shift[None]}, {"linear.weight": precision[None]})
    fit = local_method(name)
    for lr, log_var_lr in ((0.01, 0.02), (0.001, 0.002), (0.0002, 0.0005), (0.00004, 0.0005)):
        training = Training(
            epochs=1500, batch_size=400, lr=lr, momentum=0.9, log_var_lr=log_var_lr, kl_weight=1.0
        )
        fit(Local(model, x, y, nll=gaussian_nll, training=training, prior=prior))
    mean, var = exact_mean_field(x, y, shift.double(), precision.double())
    found_mean = model.linear.weight_mean.detach()[0].double()
    found_log_var = model.linear.weight_log_var.detach()[0].double()
    assert ((found_mean - mean).abs() < 0.15 * var.sqrt()).all()
    torch.testing.assert_close(found_log_var, var.log(), rtol=0, atol=0.1)


@pytest.mark.in_turn
@pytest.mark.parametrize("name", NATURAL)
@pytest.mark.parametrize("start", [-10.0, 0.0])
def test_variances_far_off_converge_within_a_round(name, start):
    """350 steps; `variational` is then still 4 log units away where it starts at 0.

    The tolerance is four standard deviations of what one batch's noise leaves of a precision that
    moves by a part ρ: √(ρ/2 · ess/batch_size) of a log unit for one draw a step (see ivon.py).
    """
    x, y = regression_data(repeats=5)
    model = Regression(x.shape[1])
    nn.init.constant_(model.linear.weight_log_var, start)
    training = Training(epochs=50, batch_size=64, lr=0.003, log_var_lr=0.02)
    local_method(name)(Local(model, x, y, nll=gaussian_nll, training=training))
    _, var = exact_mean_field(x, y, torch.zeros(20).double(), torch.ones(20).double())
    error = model.linear.weight_log_var.detach()[0].double() - var.log()
    noise_std = math.sqrt(0.02 / 2 * len(x) / 64)
    assert error.abs().max() < 4 * noise_std
    assert error.mean().abs() < 4 * noise_std / math.sqrt(len(error))


@pytest.mark.parametrize("name", SCALED)
def test_a_round_goes_on_where_the_last_one_ended(name):
    """The exact posterior is stationary: nothing but what a model's tensors hold is needed."""
    x, y = regression_data(repeats=5)
    mean, var = exact_mean_field(x, y, torch.zeros(20).double(), torch.ones(20).double())
    model = Regression(x.shape[1])
    with torch.no_grad():
        model.linear.weight_mean.copy_(mean[None])
        model.linear.weight_log_var.copy_(var.log()[None])
    training = Training(epochs=3, batch_size=64, lr=0.0003, log_var_lr=0.003)
    for seed in range(5):
        local_method(name)(Local(model, x, y, nll=gaussian_nll, training=training, seed=seed))
        error = model.linear.weight_mean.detach()[0].double() - mean
        assert (error / var.sqrt()).square().mean() < 0.3**2
        log_var = model.linear.weight_log_var.detach()[0].double()
        assert (log_var - var.log()).square().mean() < 0.2**2


@pytest.mark.parametrize("name", SCALED)
def test_log_variances_train_and_zero_rate_freezes_them(name):
    x, y = classification()
    for rate, moves in ((0.01, True), (0.0, False)):
        model = cnn()
        local_method(name)(Local(model, x, y, training=Training(epochs=5, log_var_lr=rate)))
        moved = (model.fc1.weight_log_var + 6).abs().mean().item()
        assert moved > 0.1 if moves else moved == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_ANY_NETWORK)
@pytest.mark.parametrize("n", [0, 3, 5] if NIGHT else [3])
def test_a_network_learns(name, n):
    generator = Generator().manual_seed(0)
    x = torch.rand(256, 1, 8, 8, generator=generator)
    y = x.unfold(2, 4, 4).unfold(3, 4, 4).mean((1, 4, 5)).flatten(1).argmax(1)
    model = cnn(n)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    training = Training(epochs=60, batch_size=32, lr=0.03, kl_weight=0.01, log_var_lr=0.001)
    metrics = local_method(name)(Local(model, x, y, training=training))
    assert metrics["train_nll"] < 0.5 * math.log(4)
    for key, tensor in model.state_dict().items():
        assert torch.isfinite(tensor).all()
        assert not torch.equal(tensor, before[key])


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_ANY_NETWORK)
def test_without_gaussian_tensors_it_is_sgd_with_momentum_and_weight_decay(name):
    x, y = classification()
    training = Training(epochs=2, batch_size=50, lr=0.05, momentum=0.8, weight_decay=0.01)
    ours, reference = cnn(0), cnn(0)
    local_method(name)(Local(ours, x, y, training=training, seed=3))
    order = Generator().manual_seed(3)
    optimizer = torch.optim.SGD(reference.parameters(), 0.05, momentum=0.8, weight_decay=0.01)
    for _ in range(2):
        for indices in torch.randperm(len(x), generator=order).split(50):
            optimizer.zero_grad()
            nn.functional.cross_entropy(reference(x[indices]), y[indices]).backward()
            optimizer.step()
    for key, tensor in ours.state_dict().items():
        torch.testing.assert_close(tensor, reference.state_dict()[key], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", OF_ANY_NETWORK)
def test_reported_kl_is_the_closed_form(name):
    x, y = classification()
    model = cnn()
    metrics = local_method(name)(Local(model, x, y, prior=0.5))
    q = Posterior.from_state_dict(model.state_dict())
    prior = Posterior(
        {n: torch.zeros_like(t) if n in q.log_var else t for n, t in q.mean.items()},
        {n: torch.full_like(t, 2 * math.log(0.5)) for n, t in q.log_var.items()},
    )
    assert metrics["kl"] == pytest.approx(kl_divergence(q, prior), rel=1e-5)


@pytest.mark.parametrize("name", OF_ANY_NETWORK)
def test_what_is_frozen_stays(name):
    x, y = classification()
    model = cnn()
    frozen = {"conv1.weight", "fc1.weight_mean", "fc1.weight_log_var", "fc2.weight_mean"}
    for key, parameter in model.named_parameters():
        parameter.requires_grad_(key not in frozen)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    training = Training(epochs=2, weight_decay=0.01, kl_weight=1.0)
    local_method(name)(Local(model, x, y, training=training, prior=0.5))
    still = {key for key, tensor in model.state_dict().items() if torch.equal(tensor, before[key])}
    assert still == {*frozen, "fc2.weight_log_var"}  # of a pair both


@pytest.mark.parametrize("name", OF_ANY_NETWORK)
def test_one_seed_one_result_and_the_prior_is_left_alone(name):
    x, y = classification()
    prior = Posterior.from_state_dict({k: v.clone() for k, v in cnn().state_dict().items()})
    before = {key: tensor.clone() for key, tensor in prior.mean.items()}
    results = []
    for seed in (0, 0, 1):
        model = cnn()
        local_method(name)(Local(model, x, y, prior=prior, seed=seed))
        results.append(model.state_dict())
    assert all(torch.equal(results[0][key], results[1][key]) for key in results[0])
    assert not torch.equal(results[0]["fc1.weight_mean"], results[2]["fc1.weight_mean"])
    assert all(torch.equal(prior.mean[key], before[key]) for key in before)


@pytest.mark.parametrize("name", OF_ANY_NETWORK)
def test_dropout_draws_from_the_seed_and_leaves_pytorchs_generator_as_it_was(name):
    x, y = classification(64)
    plain = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 4))
    results = []
    for before, seed in ((1, 0), (2, 0), (2, 1)):
        model = variational(plain, last=1)
        torch.manual_seed(before)
        state = torch.get_rng_state()
        local_method(name)(Local(model, x, y, seed=seed))
        assert torch.equal(torch.get_rng_state(), state)
        results.append(model[2].weight_mean)
    assert torch.equal(results[0], results[1]) and not torch.equal(results[0], results[2])


@pytest.mark.parametrize("name", NATURAL)
@pytest.mark.parametrize("kl_weight", [1.0, 1e-6])
def test_a_precision_stays_positive_where_the_curvature_seems_negative(name, kl_weight):
    """A concave loss asks for a precision below 0, many times over; a step halves it at most."""
    x, y = regression_data()
    model = Regression(4)
    training = Training(
        epochs=1, batch_size=40, lr=0.0, log_var_lr=1.0, kl_weight=kl_weight, weight_decay=0.0
    )
    local_method(name)(
        Local(model, x, y, nll=lambda o, t: -1e4 * gaussian_nll(o, t), training=training)
    )
    risen = model.linear.weight_log_var.detach() + 4
    assert torch.isfinite(risen).all()
    assert (risen <= 10 * math.log(2) + 1e-4).all()
    assert risen.max() > 1


@pytest.mark.parametrize("name", NATURAL)
def test_without_a_kl_no_variance_is_optimal_and_that_is_said(name):
    x, y = classification()
    with pytest.raises(SettingError, match="kl_weight: 0.0; expected above 0"):
        local_method(name)(Local(cnn(), x, y, training=Training(kl_weight=0.0)))


@pytest.mark.parametrize("n", [1, 3, 5])
def test_outside_of_drawing_a_network_is_that_of_its_means(n):
    x, _ = classification(8)
    model, plain = cnn(n), cnn(0)
    plain.load_state_dict(dict(Posterior.from_state_dict(model.state_dict()).mean))
    torch.testing.assert_close(model(x), plain(x))
    with drawing(model, Generator().manual_seed(0)):
        assert not torch.allclose(model(x), plain(x))


def test_names_with_an_underscore_are_no_methods():
    assert INFERENCE == tuple(sorted(INFERENCE)) and {"variational", *NATURAL} <= set(INFERENCE)
    assert not any(name.startswith("_") for name in INFERENCE)


def test_an_unknown_method_is_refused_with_the_names():
    with pytest.raises(SettingError, match="variational"):
        local_method("magic")


def test_gaussians_of_no_variance_under_no_prior_train_as_points_do():
    """FedAvg from Gaussian layers' first means, as docs/howto/variances.md has it, is FedAvg."""
    x, y = classification()
    points = cnn(0)
    gaussians = variational(points, 3, init_log_var=-30.0)
    begun = {name: weight.detach().clone() for name, weight in points.named_parameters()}
    training = Training(
        epochs=5, batch_size=32, lr=0.1, momentum=0.9, weight_decay=1e-3,
        log_var_lr=0.0, kl_weight=0.0,
    )  # fmt: skip
    fit = local_method("variational")
    for model in (points, gaussians):
        fit(Local(model, x, y, training=training))
    held = dict(gaussians.named_parameters())
    for name, weight in points.named_parameters():
        found = held[name if name in held else f"{name}_mean"]
        assert (found - weight).norm() < 1e-3 * (weight - begun[name]).norm(), name


@pytest.mark.parametrize("name", OF_ANY_NETWORK)
def test_a_long_gradient_is_shortened_and_a_short_one_is_as_it_was(name):
    """One step without momentum, penalties and Gaussians goes lr times the gradient."""
    x, y = classification(32)
    moves = {}
    for bound in (None, 1e9, 1e-3):
        model = cnn(0)
        before = torch.cat([p.detach().flatten() for p in model.parameters()])
        training = Training(1, 32, lr=0.5, momentum=0.0, max_grad_norm=bound)
        local_method(name)(Local(model, x, y, training=training))
        moves[bound] = torch.cat([p.detach().flatten() for p in model.parameters()]) - before
    assert torch.equal(moves[None], moves[1e9])
    assert float(moves[1e-3].norm()) == pytest.approx(0.5 * 1e-3, rel=1e-3)
    scale = moves[1e-3].norm() / moves[None].norm()
    torch.testing.assert_close(moves[1e-3], scale * moves[None], rtol=1e-2, atol=1e-6)
