"""Integrals over a random intercept."""

import math

import pytest
import torch
from torch import Tensor

from fedbary.inference._integrated import integrated
from fedbary.tasks._families import of_classes, of_counts


def site(seed: int, rows: int, log_std: float, counts: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return features (rows, 3), targets and weights of a site whose intercept is drawn."""
    draws = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 3, generator=draws, dtype=torch.float64)
    x[:, -1] = 1
    weights = 0.7 * torch.randn(3, generator=draws, dtype=torch.float64)
    own = math.exp(log_std) * torch.randn(1, generator=draws, dtype=torch.float64)
    outputs = x @ weights + own
    if counts:
        y = torch.poisson(outputs.clamp_max(5).exp(), generator=draws)
        return x, torch.stack([y, torch.zeros_like(y)], 1), weights
    return x, torch.bernoulli(outputs.sigmoid(), generator=draws).long(), weights


def log_joint(x: Tensor, y: Tensor, counts: bool, point: Tensor, grid: Tensor) -> Tensor:
    """Return log p(y | a) p(a) at each a of a grid."""
    outputs, std = (x @ point[:-1])[:, None] + grid, point[-1].exp()
    if counts:
        log = (y[:, :1] * outputs - outputs.exp() - torch.lgamma(y[:, :1] + 1)).sum(0)
    else:
        log = (y[:, None] * outputs - torch.nn.functional.softplus(outputs)).sum(0)
    return log + torch.distributions.Normal(torch.zeros_like(std), std).log_prob(grid)


def dense(x: Tensor, y: Tensor, counts: bool, point: Tensor) -> Tensor:
    """Return the negative log-likelihood at (weights, log τ) by a fine grid where it counts."""
    whole = torch.linspace(-70, 70, 14001, dtype=torch.float64)
    with torch.no_grad():
        log = log_joint(x, y, counts, point, whole)
        ends = whole[log > log.max() - 60][[0, -1]]
    grid = torch.linspace(*(ends + torch.tensor([-0.02, 0.02])).tolist(), 2001, dtype=torch.float64)
    log = log_joint(x, y, counts, point, grid)
    return -(log.logsumexp(0) + (grid[1] - grid[0]).log())


@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize(
    ("rows", "log_std"), [(1, -2.0), (1, 1.2), (7, 0.0), (40, -1.0), (80, 0.5), (80, 1.5)]
)
def test_a_sites_integral_is_that_of_a_fine_grid(rows, log_std, counts):
    x, y, weights = site(rows, rows, log_std, counts)
    point = torch.cat([weights, torch.tensor([log_std], dtype=torch.float64)])
    value, slope, hessian = integrated(of_counts if counts else of_classes, x, y, point)

    def fine(at: Tensor) -> Tensor:
        return dense(x, y, counts, at)

    torch.testing.assert_close(value, fine(point), atol=1e-8, rtol=1e-10)
    expected = torch.autograd.functional.jacobian(fine, point)
    torch.testing.assert_close(slope, expected, atol=1e-6, rtol=1e-7)
    expected = torch.autograd.functional.hessian(fine, point)
    torch.testing.assert_close(hessian, expected, atol=1e-5, rtol=1e-6)


def test_a_site_of_one_class_and_a_wide_intercept_has_its_integral():
    x, _, weights = site(3, 30, 0.0, counts=False)
    y, point = torch.ones(30).long(), torch.cat([weights, torch.tensor([2.0]).double()])
    value, slope, _ = integrated(of_classes, x, y, point)
    torch.testing.assert_close(value, dense(x, y, False, point), atol=1e-8, rtol=1e-10)
    assert slope.isfinite().all()
