"""A site's likelihood with a random intercept, integrated over.

    L(w, η) = −log ∫ exp(−NLL(X w + a)) N(a; 0, τ²) da,    τ = exp η.

The integrand is analytic and falls off on both sides, so the trapezoidal rule is exact to rounding
(Trefethen and Weideman 2014). Its ends are where exp(−g) is below e^−40 of its largest value, with
g(a) = NLL(X w + a) + a²/(2τ²), a convex function. Gauss-Hermite nodes about the mode miss skewed
sites: 21 of them are off by 6e-4 nats for one large count.

The sum of all sites' L is the negative log-likelihood of a generalised linear mixed model. L is
convex in w, and may be concave in η.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedbary.inference._head import Head, Joint, Profiled, slopes_and_hessians

NODES, REACH = 161, 40.0
"""Nodes of the integral, and how far below its largest logarithm the integrand is left out."""

_AT_ONCE = 2**20
"""Rows times nodes that are expanded at a time."""


class Intercepts(nn.Module):
    """Intercepts that sites draw from N(0, τ²): the parameter log τ in front of a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.log_std = nn.Parameter(torch.zeros(1), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's inputs: outputs are those of a site with the intercept 0."""
        return x


@dataclass(frozen=True)
class Integrated(Joint):
    """A site's mean negative log-likelihood, with an intercept that it integrates over.

    Parameters
    ----------
    nll : callable
        The mean negative log-likelihood of (outputs, targets), convex in the outputs.
    """

    nll: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the mean negative log-likelihood of a site with the intercept 0."""
        return self.nll(outputs, y)

    def expanded(self, head: Head, vector: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return L at the layer's weights and log τ, its slope and its Hessian."""
        return integrated(self.nll, head.features, head.local.y, vector)


def integrated(
    nll: Callable[[Tensor, Tensor], Tensor], features: Tensor, y: Tensor, point: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return L, its slope (p + 1,) and its Hessian by Louis's identities (1982).

    With E and Cov over a given the rows, and u = (Xᵀ ∂NLL/∂f, 1 − a²/τ²),

        ∂L = E u,    ∂²L = E[diag(Xᵀ NLL'' X, 2 a²/τ²)] − Cov u.

    Parameters
    ----------
    nll : callable
        The mean negative log-likelihood of outputs (n, 1) and targets, convex in the outputs.
    features : Tensor
        X (n, p), float64.
    y : Tensor
        Targets.
    point : Tensor
        w and η (p + 1,), float64.
    """
    outputs, std = features @ point[:-1, None], float(point[-1].exp())
    mode = Profiled(nll, std).intercept(outputs, y)

    def g(a: Tensor) -> Tensor:
        return len(outputs) * nll(outputs + a, y) + a[0] ** 2 / (2 * std**2)

    low, high = (_reach(g, mode, sign * std) for sign in (-1, 1))
    nodes = torch.lerp(low, high, torch.linspace(0, 1, NODES, dtype=torch.float64))
    log = -torch.vmap(g)(nodes[:, None])
    share = log.softmax(0)
    slopes, bend = [], torch.zeros_like(outputs[:, 0])
    at_once = max(1, _AT_ONCE // len(outputs))
    for part, shares in zip(nodes.split(at_once), share.split(at_once), strict=True):
        at = (outputs.T + part[:, None]).reshape(-1, 1)
        slope, hessian = slopes_and_hessians(nll, at, y.repeat(len(part), *[1] * (y.dim() - 1)))
        slopes.append(slope.view(len(part), -1) @ features)
        bend += shares @ hessian.view(len(part), -1)
    u = torch.cat([torch.cat(slopes), 1 - (nodes[:, None] / std) ** 2], 1)
    mean = share @ u
    of_rows = features.T @ (features * bend[:, None])
    hessian = torch.block_diag(of_rows, (2 * share @ (nodes / std) ** 2)[None, None])
    hessian -= (u - mean).T @ ((u - mean) * share[:, None])
    total = log.logsumexp(0) + (nodes[1] - nodes[0]).log()
    return point[-1] + math.log(2 * math.pi) / 2 - total, mean, hessian


def _reach(g: Callable[[Tensor], Tensor], mode: Tensor, step: float) -> Tensor:
    """Return a point beyond the mode where g is REACH above its least value, or a little more."""
    near, far, high = 0.0, step, g(mode) + REACH
    while g(mode + far) < high:
        near, far = far, 2 * far
    for _ in range(8):
        middle = (near + far) / 2
        near, far = (near, middle) if g(mode + middle) > high else (middle, far)
    return mode + far
