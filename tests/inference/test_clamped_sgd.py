"""BA-BFL's public recursion: below the clamp nothing but weight decay moves log-variances."""

import math

import numpy as np
import pytest
import torch
from every_method import NIGHT
from hypothesis import given, settings
from hypothesis import strategies as st
from test_inference import Regression, exact_mean_field, gaussian_nll, regression_data
from torch import Generator

from fedbary import predict
from fedbary.data.image_layout import ImageLayout
from fedbary.data.partition import partition
from fedbary.errors import SettingError
from fedbary.inference import Local, Training, local_method, prepare
from fedbary.inference.clamped_sgd import LOG_VAR_RANGE
from fedbary.models import build
from fedbary.seeds import derive_seed
from fedbary.settings.config import resolve
from fedbary.tasks import task_of
from fedbary.variational.layers import drawing, gaussian_layers

LOW, HIGH = LOG_VAR_RANGE
PAPER = resolve({"protocol": "paper"})
fit = local_method("clamped_sgd")


def decayed(start, steps, lr, momentum, weight_decay):
    """Where SGD takes a tensor that nothing but weight decay moves, in float64: linear algebra."""
    step = np.array([[1 - lr * weight_decay, -lr * momentum], [weight_decay, momentum]])
    return float((np.linalg.matrix_power(step, steps) @ [start, 0.0])[0])


def rounds_to_clamp(training, sizes):
    """Rounds after which the mean of the clients' log-variances has passed the clamp."""
    log_var, rounds = PAPER.init_log_var, 0
    while log_var < LOW:
        steps = [training.epochs * math.ceil(n / training.batch_size) for n in sizes]
        rates = training.log_var_lr, training.momentum, training.weight_decay
        held = [decayed(log_var, count, *rates) for count in steps]
        log_var, rounds = float(np.average(held, weights=sizes)), rounds + 1
    return rounds


def paper_training(**changed):
    values = {
        "epochs": PAPER.local_epochs, "batch_size": PAPER.batch_size, "lr": PAPER.lr,
        "momentum": PAPER.momentum, "weight_decay": PAPER.weight_decay,
        "log_var_lr": PAPER.log_var_lr, "kl_weight": PAPER.kl_weight,
    }  # fmt: skip
    return Training(**{**values, **changed})


def started(log_var):
    model = Regression(4)
    torch.nn.init.constant_(model.linear.weight_log_var, log_var)
    prepare("clamped_sgd", model)
    return model


def log_vars(model):
    return model.linear.weight_log_var.detach()[0].clone()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_papers_log_variances_pass_the_clamp_at_half_time(seed):
    """On Fashion-MNIST, of 60,000 images: after 24 or 25 of 50 rounds of 50 epochs."""
    labels = np.repeat(np.arange(10), 6000)
    split = derive_seed(seed, "partition")
    sizes = [len(p) for p in partition(labels, PAPER.partition, 10, split, alpha=PAPER.alpha)]
    assert rounds_to_clamp(paper_training(), sizes) in (24, 25)


@pytest.mark.slow
def test_round_for_round_a_client_follows_the_recursion_until_it_passes_the_clamp():
    """With a hundred times the weight decay, and as few steps: 64 examples, one batch an epoch."""
    x, y = regression_data(64)
    training = paper_training(weight_decay=1e-3)
    rates = training.log_var_lr, training.momentum, training.weight_decay
    passes = rounds_to_clamp(training, [64])
    assert 20 < passes < 50
    model, expected = started(PAPER.init_log_var), PAPER.init_log_var
    for number in range(1, passes + 1):
        fit(Local(model, x, y, nll=gaussian_nll, training=training, seed=number))
        expected = decayed(expected, training.epochs, *rates)
        found = log_vars(model)
        assert (found > LOW).all() == (number == passes)
        if number < passes:
            assert (found == found[0]).all()
            assert float(found[0]) == pytest.approx(expected, abs=1e-4)
    fit(Local(model, x, y, nll=gaussian_nll, training=training))
    assert len(log_vars(model).unique()) == 4


@settings(max_examples=20)
@given(
    start=st.floats(-30, 30),
    kl_weight=st.floats(0.01, 100),
    prior_std=st.floats(0.01, 10),
    seed=st.integers(0, 2**32),
)
def test_data_and_prior_speak_within_the_clamp_alone(start, kl_weight, prior_std, seed):
    training = paper_training(epochs=3, lr=1e-6, weight_decay=0.0, kl_weight=kl_weight)
    model = started(start)
    before = log_vars(model)
    x, y = regression_data(64)
    fit(Local(model, x, y, nll=gaussian_nll, training=training, prior=prior_std, seed=seed))
    assert torch.equal(log_vars(model), before) != (LOW <= float(before[0]) <= HIGH)


@pytest.mark.slow
@pytest.mark.parametrize("n", [100, 400] if NIGHT else [100])
def test_recovers_the_posterior_of_bayesian_linear_regression_within_the_clamp(n):
    """With 400 examples the surest weight's variance lies below e⁻⁸, where the clamp holds it."""
    x, y = regression_data(n)
    model = started(-4.0)
    for lr, log_var_lr in ((0.01, 0.1), (0.001, 1.0), (0.0002, 0.3), (0.00004, 0.1)):
        training = Training(epochs=1500, batch_size=400, lr=lr, log_var_lr=log_var_lr)
        fit(Local(model, x, y, nll=gaussian_nll, training=training))
    mean, var = exact_mean_field(x, y, torch.zeros(4).double(), torch.ones(4).double())
    assert (var.log() < LOW).any() == (n == 400)
    error = model.linear.weight_mean.detach()[0].double() - mean
    assert (error.abs() < 0.15 * var.sqrt().clamp(min=math.exp(LOW / 2))).all()
    found, expected = (v.clamp(LOW, HIGH) for v in (log_vars(model).double(), var.log()))
    torch.testing.assert_close(found, expected, rtol=0, atol=0.1)


def test_a_rate_of_zero_freezes_log_variances_wherever_they_are():
    x, y = regression_data(64)
    for start in (-9.0, -5.0):
        model = started(start)
        training = paper_training(log_var_lr=0.0, weight_decay=0.1)
        fit(Local(model, x, y, nll=gaussian_nll, training=training))
        assert (log_vars(model) == start).all()


@pytest.mark.parametrize("below", [-8.5, -12.0])
def test_the_clamp_holds_in_fits_draws_and_predictions_and_what_travels_is_unclamped(below):
    x = torch.rand(20, 1, 8, 8, generator=Generator().manual_seed(0))
    answers = []
    for start in (LOW, below):
        model = build("cnn", (1, 8, 8), 4, 0, bayesian_layers=5, init_log_var=start)
        prepare("clamped_sgd", model)
        with drawing(model, Generator().manual_seed(1)):
            drawn = model(x)
        probs = predict(model, x, 5, seed=1).probs
        y = torch.arange(20) % 4
        metrics = fit(Local(model, x, y, training=Training(log_var_lr=0.0)))
        answers.append((drawn, probs, torch.tensor(metrics["kl"]), model.fc1.weight_mean))
        assert (model.state_dict()["fc1.weight_log_var"] == start).all()
    for clamped, found in zip(*answers, strict=True):
        assert torch.equal(clamped, found)


def test_the_paper_preset_starts_below_the_clamp_with_biases_of_zero():
    """All else of the network is as under another local method."""
    chosen = {"protocol": "paper", "dataset": "none", "classes": 4, "input_shape": "1x8x8"}
    task = ImageLayout((1, 8, 8), ("0", "1", "2", "3"))
    paper = task_of(resolve(chosen)).make_model(task)
    other = task_of(resolve({**chosen, "inference": "variational"})).make_model(task)
    others = other.state_dict()
    for name, tensor in paper.state_dict().items():
        zero = name in ("fc1.bias", "fc2.bias", "fc3.bias")
        assert torch.equal(tensor, torch.zeros_like(tensor) if zero else others[name])
    assert (paper.fc3.weight_log_var == -9).all() and (others["fc3.bias"] != 0).all()
    assert [layer.log_var_range for layer in gaussian_layers(other).values()] == [None] * 3


def test_a_regression_which_draws_unclamped_refuses_it():
    with pytest.raises(SettingError, match="inference: 'clamped_sgd'"):
        resolve({"protocol": "regression-vi", "inference": "clamped_sgd"})
