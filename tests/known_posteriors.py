"""A linear regression whose posterior is known, and a small classification."""

import torch
from torch import Generator, nn

from fedbary.inference import INFERENCE
from fedbary.models import build
from fedbary.variational.layers import VariationalLinear, reset_layer

NOISE_STD = 0.5
UNSCALED = ("clamped_sgd", "curvature")
"""Methods whose log-variances do not settle by their own steps: see their own tests."""
OF_ANY_NETWORK = tuple(name for name in INFERENCE if name != "laplace")
"""Methods that train any network. laplace takes the point weights of a last layer alone."""
SCALED = tuple(name for name in OF_ANY_NETWORK if name not in UNSCALED)


class Regression(nn.Module):
    """y = x w + N(0, NOISE_STD²), Gaussian weights, no bias."""

    def __init__(self, features):
        super().__init__()
        self.linear = VariationalLinear(features, 1)
        reset_layer(self.linear, -4.0, Generator().manual_seed(0))
        nn.init.zeros_(self.linear.bias)
        self.linear.bias.requires_grad_(False)

    def forward(self, x):
        return self.linear(x)


def gaussian_nll(output, target):
    return 0.5 * (output[:, 0] - target).square().mean() / NOISE_STD**2


def regression_data(n=400, repeats=1):
    """Four features, or each `repeats` times with values of its own."""
    generator = Generator().manual_seed(1)
    scales = torch.tensor([2.0, 1.0, 0.5, 0.3]).repeat(repeats)
    x = torch.randn(n, len(scales), generator=generator) * scales
    w = torch.tensor([1.0, -2.0, 0.5, 3.0]).repeat(repeats)
    return x, x @ w + NOISE_STD * torch.randn(n, generator=generator)


def exact_mean_field(x, y, prior_shift, prior_precision):
    """The mean-field optimum: the exact posterior's mean, and one over its precision's diagonal."""
    x, y = x.double(), y.double()
    precision = x.t() @ x / NOISE_STD**2 + torch.diag(prior_precision)
    mean = torch.linalg.solve(precision, x.t() @ y / NOISE_STD**2 + prior_shift)
    return mean, 1 / precision.diag()


def classification(n=256):
    generator = Generator().manual_seed(0)
    x = torch.rand(n, 1, 8, 8, generator=generator)
    return x, torch.randint(0, 4, (n,), generator=generator)


def cnn(n=3):
    return build("cnn", (1, 8, 8), 4, 0, n, -6.0, {"initialisation": "papers"})
