"""The α-barycentre of univariate Gaussians: from log-linear pooling, α → 0, to the mixture, α = 1.

It is p ∝ (Σ w_k p_k^α)^{1/α} for p_k = N(m_k, v_k), the minimiser of the weighted α-divergence.
It is Gaussian for α → 0 alone, and is RKLB there; for any other α its first two moments give the
Gaussian closest to it in forward KL, which is FKLB for α = 1. For α = 1/r they are known in closed
form: see the rule HB, `fedbary.aggregation.hb`.

References
----------
BA-BFL, eqs. 5 and 6, and remark 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedbary.aggregation.sums import normalised
from fedbary.errors import SettingError

_LIMIT = 1e-8
"""Below this |α| the limit is taken: log Σ w p^α / α has lost half its digits by then."""

_SIDE = 3.0 ** torch.arange(6, dtype=torch.float64)
_EDGES = torch.cat([-_SIDE, torch.zeros(1, dtype=torch.float64), _SIDE])
"""Where the first panels end about each mean, in its standard deviations: wider further out."""

_REACH = 12.0
"""How far the panels reach beyond the outermost means, in the largest standard deviation."""

_PASSES, _BISECTED = 60, 8
"""Passes over the panels at most, and how many of them are halved in a pass."""

_STEP = 1.0
"""Change of the log-density over a panel above which it is halved."""

_NEGLIGIBLE = 45.0
"""Panels that stay this far below the peak of the log-density are not halved: e^-45 = 3e-20."""

_NODES, _NODE_WEIGHTS = map(torch.from_numpy, np.polynomial.legendre.leggauss(10))

_BUDGET = 1 << 22
"""Numbers that one intermediate tensor may hold."""


def alpha_barycentre(
    means: Tensor, log_vars: Tensor, weights: Tensor, alpha: float
) -> tuple[Tensor, Tensor]:
    """Project the α-barycentre of Gaussians, element by element, on the Gaussian of its moments.

    Mean and variance of p ∝ (Σ w_k N(m_k, v_k)^α)^{1/α}, by quadrature in float64 on panels that
    are halved until the log-density changes little over each. With standard deviations 1000 times
    apart the moments are good to 1e-5 (of the standard deviation and of the variance) for
    −2 ≤ α ≤ 5, and to 1e-8 for 0 ≤ α ≤ 1. Slow: 1.5 ms an element of 10 clients, a rule 0.1 µs.

    Parameters
    ----------
    means, log_vars : Tensor
        Mean and log-variance of the Gaussians of each client, (K, ...), floating.
    weights : Tensor
        Weight of each client, (K,): finite, none negative, not all 0; any scale.
    alpha : float
        Any finite number; 0 is the limit.

    Returns
    -------
    tuple of Tensor
        Mean and log-variance, (...), in the dtype of `means`.

    Raises
    ------
    ValueError
        The shapes do not fit.
    SettingError
        The weights or `alpha` are not allowed.
    """
    shares, present = _checked(means, log_vars, weights, alpha)
    m, lv = (t.detach().double()[present].reshape(len(shares), -1) for t in (means, log_vars))
    panels = (len(_EDGES) + 1) * len(m) + 16 * _BISECTED
    chunk = max(1, _BUDGET // (panels * len(_NODES) * len(m)))
    parts = [
        _Pool(*part, shares, alpha).moments()
        for part in zip(m.split(chunk, 1), lv.split(chunk, 1), strict=True)
    ]
    mean, log_var = (torch.cat(part) for part in zip(*parts, strict=True))
    shape = means.shape[1:]
    return mean.reshape(shape).to(means.dtype), log_var.reshape(shape).to(means.dtype)


def alpha_density(
    x: Tensor, means: Tensor, log_vars: Tensor, weights: Tensor, alpha: float
) -> Tensor:
    """Return the density of the α-barycentre of K Gaussians itself, (Σ w_k p_k^α)^{1/α} / Z.

    Parameters
    ----------
    x : Tensor
        Where, (P,), floating.
    means, log_vars : Tensor
        Of the K Gaussians, (K,).
    weights, alpha
        See `alpha_barycentre`; it raises the same errors.

    Returns
    -------
    Tensor
        The density, (P,), in the dtype of `x`.
    """
    shares, present = _checked(means, log_vars, weights, alpha)
    m, lv = (t.detach().double()[present].reshape(-1, 1) for t in (means, log_vars))
    return _Pool(m, lv, shares, alpha).density(x.double()[:, None])[:, 0].to(x.dtype)


def _checked(
    means: Tensor, log_vars: Tensor, weights: Tensor, alpha: float
) -> tuple[Tensor, Tensor]:
    """Return the positive weights, summing to 1, and which clients they are of."""
    if means.ndim == 0 or means.shape != log_vars.shape or weights.shape != means.shape[:1]:
        shapes = ", ".join(str(tuple(t.shape)) for t in (means, log_vars, weights))
        raise ValueError(
            f"means and log_vars must be (K, ...) alike, and weights (K,); got {shapes}"
        )
    if not math.isfinite(alpha):
        raise SettingError("alpha", alpha, "a finite number")
    shares = torch.tensor(normalised(weights.tolist()), dtype=torch.float64)
    present = shares > 0
    return shares[present], present


@dataclass(frozen=True, eq=False)
class _Pool:
    """The α-barycentres of N elements: means and log_vars (K, N), weights (K,), in float64."""

    means: Tensor
    log_vars: Tensor
    weights: Tensor
    alpha: float

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return mean and log-variance, (N,)."""
        x, log_mass = self._quadrature()
        mass = log_mass.softmax(0)
        mean = (mass * x).sum(0)
        return self.origin + mean, (mass * (x - mean).square()).sum(0).log()

    def density(self, x: Tensor) -> Tensor:
        """Return the normalised density at x, (P, N)."""
        _, log_mass = self._quadrature()
        return (self._log_density(x - self.origin) - log_mass.logsumexp(0)).exp()

    @property
    def origin(self) -> Tensor:
        """What x counts from, (N,): the weighted mean, so that equal means lose no digits."""
        return self.weights @ self.means

    def _log_density(self, x: Tensor) -> Tensor:
        """Return the log-density at `origin` + x, (P, N), but for a constant."""
        log_vars = self.log_vars[:, None]
        distance = x - (self.means - self.origin)[:, None]
        log_p = -0.5 * (distance.square() * (-log_vars).exp() + log_vars)
        weights = self.weights[:, None, None]
        if abs(self.alpha) < _LIMIT:
            return (weights * log_p).sum(0)
        return (self.alpha * log_p + weights.log()).logsumexp(0) / self.alpha

    def _quadrature(self) -> tuple[Tensor, Tensor]:
        """Return nodes, counted from `origin`, and the logarithm of the mass at each, (P, N)."""
        edges = self._edges()
        half = edges.diff(dim=0)[:, None] / 2
        x = (edges[:-1, None] + half + half * _NODES[:, None]).flatten(0, 1)
        log_width = (half * _NODE_WEIGHTS[:, None]).flatten(0, 1).log()
        return x, self._log_density(x) + log_width

    def _edges(self) -> Tensor:
        """Return ends of panels, ascending: about every mean, then where it is steep."""
        means, stds = self.means - self.origin, (0.5 * self.log_vars).exp()
        reach = _REACH * stds.amax(0)
        ends = torch.stack([means.amin(0) - reach, means.amax(0) + reach])
        edges = (means[:, None] + stds[:, None] * _EDGES[:, None]).flatten(0, 1)
        edges = torch.cat([edges.clamp(*ends), ends]).sort(0).values
        for _ in range(_PASSES):
            middles = (edges[:-1] + edges[1:]) / 2
            change, panel = self._changes(edges, middles).topk(_BISECTED, 0)
            if (change < _STEP).all():
                break
            edges = torch.cat([edges, middles.gather(0, panel)]).sort(0).values
        return edges

    def _changes(self, edges: Tensor, middles: Tensor) -> Tensor:
        """Return how much the log-density changes in each panel, 0 where it is negligible."""
        at_edges, middle = self._log_density(edges), self._log_density(middles)
        left, right = at_edges[:-1], at_edges[1:]
        height = torch.stack([left, middle, right]).amax(0)
        change = (middle - left).abs() + (right - middle).abs()
        return torch.where(height > height.amax(0) - _NEGLIGIBLE, change, 0.0)
