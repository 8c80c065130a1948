"""Clients of a linear model with Gaussian weights and known noise: local optima in closed form."""

import torch
from torch import nn

from fedbary.inference import Training
from fedbary.methods import Local, Reply, Server

NOISE_VAR = 0.25


def double(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


class Linear(nn.Module):
    """y = x w, Gaussian weights, in float64."""

    def __init__(self, features):
        super().__init__()
        self.weight_mean = nn.Parameter(torch.zeros(features, dtype=torch.float64))
        self.weight_log_var = nn.Parameter(torch.full((features,), -3.0, dtype=torch.float64))


def exact_fit(local):
    """Set the mean-field optimum of a linear model: s = diag H_k/κ + s₀, (H_k/κ + s₀) m = …."""
    model, x, y, kappa = local.model, local.x, local.y, local.training.kl_weight
    shift, precision = local.prior.shift["weight"], local.prior.precision["weight"]
    curvature, pull = x.t() @ x / NOISE_VAR / kappa, x.t() @ y / NOISE_VAR / kappa
    model.weight_mean.data = torch.linalg.solve(curvature + precision.diag(), pull + shift)
    model.weight_log_var.data = -(curvature.diag() + precision).log()
    return {}


def clients(seed, count, features=4, correlation=0.5):
    """Return the data of clients of different sizes with correlated features."""
    generator = torch.Generator().manual_seed(seed)
    kwargs = {"generator": generator, "dtype": torch.float64}
    weights = torch.randn(features, **kwargs)
    data = []
    for k in range(count):
        common = torch.randn(20 + 10 * k, 1, **kwargs)
        own = torch.randn(20 + 10 * k, features, **kwargs)
        x = correlation**0.5 * common + (1 - correlation) ** 0.5 * own
        data.append((x, x @ weights + NOISE_VAR**0.5 * torch.randn(len(x), **kwargs)))
    return data


def independent(data):
    """Return the clients' data with features that are orthogonal at each: posteriors factorise."""
    found = []
    for k, (x, y) in enumerate(data):
        scales = torch.linspace(1.0, 2.0 + k, x.shape[1], dtype=torch.float64)
        found.append((torch.linalg.qr(x).Q * scales, y))
    return found


def posterior_of_all(data, prior_std=1.0, kl_weight=1.0):
    """Return the mean, and 1 over the diagonal of the precision, at a likelihood's 1/κ-th power."""
    x, y = torch.cat([x for x, _ in data]), torch.cat([y for _, y in data])
    noise_var = NOISE_VAR * kl_weight
    precision = x.t() @ x / noise_var + torch.eye(x.shape[1], dtype=torch.float64) / prior_std**2
    return torch.linalg.solve(precision, x.t() @ y / noise_var), 1 / precision.diag()


def one_round(method, model, state, data, turn, inference=exact_fit, kl_weight=1.0):
    replies = []
    for k in turn:
        network = Linear(data[k][0].shape[1])
        training = Training(kl_weight=kl_weight)
        local = Local(network, *data[k], nll=None, inference=inference, training=training,
                      prior=1.0, round=1, seed=k)  # fmt: skip
        name = f"site/{k}"  # a name with a slash, as paths have
        fitted = method.fit(local, method.send(Server(model, state), name), {})
        replies.append(Reply(name, len(data[k][0]), fitted.reply))
    return method.aggregate(Server(model, state), replies)


def start(method, data):
    model = {
        name: t.detach().clone() for name, t in Linear(data[0][0].shape[1]).state_dict().items()
    }
    return model, method.start(model)


def rounds(method, data, turns, **kwargs):
    """Return the model and the state after rounds, in each of which some clients take part."""
    model, state = start(method, data)
    for turn in turns:
        model, state = one_round(method, model, state, data, turn, **kwargs)
    return model, state


def assert_is(model, mean, var, tolerance=1e-6, of_var=None):
    """Hold that a model's Gaussian weights have a mean and a variance."""
    torch.testing.assert_close(model["weight_mean"], mean, rtol=tolerance, atol=tolerance)
    found = model["weight_log_var"].exp()
    torch.testing.assert_close(found, var, rtol=of_var or tolerance, atol=0)


def assert_same_factor(found, expected):
    """Hold that two factors of the weights have the same natural parameters."""
    torch.testing.assert_close(found.shift["weight"], expected.shift["weight"])
    torch.testing.assert_close(found.precision["weight"], expected.precision["weight"])
