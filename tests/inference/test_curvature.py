"""Curvature: the posterior of all data on a quadratic, and an unbiased diagonal."""

import math

import pytest
import torch
from known_posteriors import Regression, classification, cnn, gaussian_nll
from torch import Generator, nn
from torch.nn.functional import cross_entropy

from fedbary.aggregation import aggregate
from fedbary.errors import SettingError
from fedbary.gaussian import Factor, Posterior
from fedbary.inference import Local, Training, curvature, local_method, prepare
from fedbary.inference._steps import Vectors
from fedbary.predictive.networks import answering_draws
from fedbary.tasks.tables import weighted_cross_entropy
from fedbary.variational.layers import drawing, variational

NAME = "linear.weight"
SIZES = (3, 40, 150)
PRIOR_STD = 0.4


def quadratics():
    """Clients of unlike sizes whose rows have one feature each: every curvature is diagonal."""
    generator = Generator().manual_seed(5)
    for size in SIZES:
        places = torch.randint(4, (size,), generator=generator)
        x = nn.functional.one_hot(places, 4) * torch.randn(size, 1, generator=generator)
        yield x, x @ torch.randn(4, generator=generator) + torch.randn(size, generator=generator)


def mode(x, y, ess, prior_precision):
    """Return the minimum of ess · mean NLL + ½ s₀ m², and the curvature there."""
    curved = x.double().square().mean(0) / 0.25
    pull = (x.double() * y.double()[:, None]).mean(0) / 0.25
    precision = ess * curved + prior_precision
    return ess * pull / precision, precision


def replies(kl_weight):
    """Return each client's posterior; it begins at its mode, and its steps are of no length."""
    for x, y in quadratics():
        share = len(y) / sum(SIZES) if kl_weight == "share" else kl_weight
        model = Regression(4)
        with torch.no_grad():
            model.linear.weight_mean.copy_(mode(x, y, len(y) / share, PRIOR_STD**-2)[0][None])
        training = Training(1, 1, lr=1e-12, kl_weight=share)
        local = Local(model, x, y, nll=gaussian_nll, training=training, prior=PRIOR_STD)
        local_method("curvature")(local)
        yield Posterior.from_state_dict(model.state_dict())


def product(rule, kl_weight):
    """Return mean and precision of the rule's aggregate."""
    found = aggregate(rule, list(replies(kl_weight)), SIZES)
    return found.mean[NAME][0].double(), (-found.log_var[NAME][0].double()).exp()


def of_all(prior_precision):
    """Return mean and precision of the posterior of all data."""
    x, y = (torch.cat(parts) for parts in zip(*quadratics(), strict=True))
    return mode(x, y, len(y), prior_precision)


def close(found, expected):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_one_round_of_rklb_with_a_prior_by_share_is_the_posterior_of_all_data():
    close(product("RKLB", "share"), of_all(PRIOR_STD**-2))


def test_conflation_of_whole_posteriors_is_that_but_counts_the_prior_once_a_client():
    close(product("Conflation", 1.0), of_all(len(SIZES) * PRIOR_STD**-2))


def test_rklb_of_whole_posteriors_counts_sizes_twice():
    """Its precision is Σ n_k (n_k h_k + s₀) / N, not that of all data."""
    precision = sum(len(y) * mode(x, y, len(y), PRIOR_STD**-2)[1] for x, y in quadratics()) / sum(
        SIZES
    )
    found, expected = product("RKLB", 1.0), of_all(PRIOR_STD**-2)
    torch.testing.assert_close(found[1], precision, rtol=1e-4, atol=1e-5)
    assert (found[0] - expected[0]).abs().max() > 0.05


def test_steps_from_anywhere_end_at_the_mode():
    x, y = list(quadratics())[1]
    model = Regression(4)
    training = Training(600, len(y), lr=0.1, momentum=0.5, kl_weight=0.3, weight_decay=0.02)
    local_method("curvature")(Local(model, x, y, gaussian_nll, training=training, prior=PRIOR_STD))
    ess = len(y) / 0.3
    expected, _ = mode(x, y, ess, PRIOR_STD**-2 + 0.02 * ess)
    torch.testing.assert_close(
        model.linear.weight_mean[0].detach().double(), expected, rtol=1e-4, atol=1e-4
    )


NLLS = {
    "softmax": cross_entropy,
    "weighted": weighted_cross_entropy(torch.tensor([0.3, 1.0, 2.0])),
    "gaussian": lambda outputs, y: 0.5 * (outputs[:, 0] - y).square().mean() / 0.3,
}


def exact(local, means):
    """Return the diagonal of mean JᵀHJ, by a row of J at a time."""
    total = 0.0
    for x, y in zip(local.x, local.y, strict=True):
        outputs = local.model(x[None])[0]
        rows = [torch.autograd.grad(o, means, retain_graph=True) for o in outputs]
        slopes = torch.stack([torch.cat([g.flatten() for g in row]) for row in rows])
        bent = torch.autograd.functional.hessian(
            lambda o, y=y: local.nll(o[None], y[None]), outputs.detach()
        )
        total += ((bent @ slopes) * slopes).sum(0) / len(local.x)
    return total


@pytest.mark.parametrize(
    ("nll", "batch_size"), [("softmax", 1), ("softmax", 3), ("weighted", 3), ("gaussian", 3)]
)
def test_the_estimate_is_unbiased(nll, batch_size):
    """The means of many draws are within five standard errors of the exact diagonal."""
    torch.manual_seed(0)
    plain = nn.Sequential(
        nn.Conv2d(1, 2, 2, stride=2), nn.GroupNorm(1, 2), nn.Tanh(), nn.Flatten(),
        nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3),
    )  # fmt: skip
    model = variational(plain, last=2)
    prepare("curvature", model)
    x, y = torch.rand(6, 1, 4, 4), torch.arange(6) % 3
    training, draws = Training(batch_size=batch_size), []
    q = Vectors(model, 1.0)
    for seed in range(200):
        local = Local(model, x, y, NLLS[nll], training=training, seed=seed)
        draws.append(curvature.curvature(local, q))
    found, expected = (
        torch.stack(draws),
        exact(local, q.points.parameters[: len(q.log_vars.parameters)]),
    )
    error = found.std(0) / math.sqrt(len(draws))
    assert ((found.mean(0) - expected).abs() < 5 * error + 1e-6).all()
    assert 0.8 < found.mean() / expected.mean() < 1.2


def test_means_take_the_steps_of_point_weights():
    """Under a flat prior they are FedAvg's, whatever the variances that they came with."""
    x, y = classification(64)
    points, gaussians = cnn(0), variational(cnn(0), 3, init_log_var=2.0)
    prepare("curvature", gaussians)
    training = Training(3, 16, lr=0.1, momentum=0.9, weight_decay=1e-3)
    for name, model in (("variational", points), ("curvature", gaussians)):
        local_method(name)(Local(model, x, y, training=training, prior=1e9))
    held = Posterior.from_state_dict(gaussians.state_dict()).mean
    for name, weight in points.state_dict().items():
        torch.testing.assert_close(held[name], weight, rtol=1e-4, atol=1e-6)


def test_a_weight_that_no_precision_is_positive_for_keeps_its_variance():
    x = torch.zeros(6, 4)
    x[:, 0] = 1.0
    model, before = Regression(4), Regression(4).linear.weight_log_var.detach()[0]
    factor = Factor({NAME: torch.zeros(1, 4)}, {NAME: torch.tensor([[-0.1, -0.1, 0.0, 2.0]])})
    local = Local(model, x, x[:, 0], gaussian_nll, training=Training(1, 2), prior=factor)
    local_method("curvature")(local)
    found = model.linear.weight_log_var.detach()[0]
    assert torch.equal(found[1:3], before[1:3])
    assert found[3] == pytest.approx(-math.log(2))
    assert found[0] < -math.log(6)


def test_without_a_kl_no_variance_is_finite_and_that_is_said():
    x, y = classification(16)
    with pytest.raises(SettingError, match="kl_weight"):
        local_method("curvature")(Local(cnn(), x, y, training=Training(kl_weight=0.0)))


def test_gaussian_biases_keep_the_network_and_are_drawn_in_every_prediction():
    x, _ = classification(4)
    plain = cnn(3)
    model = cnn(3)
    prepare("curvature", model)
    prepare("curvature", model)
    assert torch.equal(model(x), plain(x))
    held = Posterior.from_state_dict(model.state_dict())
    assert held.log_var.keys() - Posterior.from_state_dict(plain.state_dict()).log_var.keys() == {
        "fc1.bias", "fc2.bias", "fc3.bias",
    }  # fmt: skip
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("log_var"):
                parameter.fill_(0.0 if name == "fc3.bias_log_var" else -40.0)
    draws = 400
    with drawing(model, Generator().manual_seed(0)), torch.no_grad():
        passes = torch.stack([model(x) for _ in range(draws)])
    networks = answering_draws(model, draws, Generator().manual_seed(1))(x)
    for answers in (passes, networks):
        std = (answers - plain(x)).std(0)
        assert ((std - 1).abs() < 5 / math.sqrt(2 * draws)).all()
