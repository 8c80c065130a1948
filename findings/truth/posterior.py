"""The posterior of a softmax regression with all data in one place, by Hamiltonian Monte Carlo.

With n examples (x_i, y_i), x_i with a last 1 for the bias, and weights W of C classes,

    U(W) = Σ_i (log Σ_c exp(w_cᵀ x_i) − w_{y_i}ᵀ x_i) + ‖W‖²/(2 s²).

Chains run in the coordinates of the Laplace approximation, W = mode + L z with L Lᵀ the inverse of
the Hessian at the mode. There the posterior is almost N(0, I). A path has a random number of
leapfrog steps. Its end is taken with probability min(1, exp(H₀ − H)), H = U + |p|²/2. So draws are
exact but for the chains' length, whatever the step size.

References: Neal, MCMC using Hamiltonian dynamics, 2011; Vehtari et al., Rank-normalization, folding
and localization: an improved R̂, 2021, for the split R̂ and the effective size.
"""

import math
from collections.abc import Callable

import torch
from torch import Generator, Tensor

TOLERANCE = 1e-16
"""Twice the decrease of U that is left, at which Newton's method ends."""

WARM_UP, STEP, MOST_STEPS = 50, 0.3, 12
"""Draws that are dropped; the mean step size in the chains' coordinates; most steps of a path."""

Point = tuple[Tensor, Tensor, float]
"""z, the slope ∂U/∂z, and U."""


class Softmax:
    """The negative log-density of W, up to a constant.

    Parameters
    ----------
    x, y
        Features (n, d) and classes (n,).
    classes
        C.
    prior_std
        s, of weights and biases alike.
    """

    def __init__(self, x: Tensor, y: Tensor, classes: int, prior_std: float) -> None:
        self.x = with_one(x)
        self.onehot = torch.nn.functional.one_hot(y, classes).double()
        self.linear = self.onehot.T @ self.x
        self.precision = prior_std**-2
        self.shape = self.linear.shape

    def energy(self, w: Tensor) -> Tensor:
        """Return U of weights (…, C, d + 1)."""
        fit = torch.logsumexp(w @ self.x.T, -2).sum(-1) - (w * self.linear).sum((-2, -1))
        return fit + 0.5 * self.precision * w.square().sum((-2, -1))

    def slope(self, w: Tensor) -> Tensor:
        """Return ∂U/∂W, (…, C, d + 1)."""
        return torch.softmax(w @ self.x.T, -2) @ self.x - self.linear + self.precision * w

    def hessian(self, w: Tensor) -> Tensor:
        """Return the second derivatives at one W, square, in the order of its rows."""
        p = torch.softmax(w @ self.x.T, 0)
        found = -torch.einsum("ci,di,ij,ik->cjdk", p, p, self.x, self.x)
        own = torch.einsum("ci,ij,ik->cjk", p, self.x, self.x)
        for c in range(len(w)):
            found[c, :, c] += own[c]
        found = found.reshape(w.numel(), w.numel())
        return found + self.precision * torch.eye(w.numel(), dtype=w.dtype)

    def mode(self) -> Tensor:
        """Return the W with the least U, by Newton's method."""
        w = torch.zeros(self.shape, dtype=torch.float64)
        for _ in range(100):
            slope = self.slope(w)
            step = torch.linalg.solve(self.hessian(w), slope.flatten()).reshape(self.shape)
            if (slope * step).sum() < TOLERANCE:
                break
            size = 1.0
            while self.energy(w - size * step) > self.energy(w) - 0.1 * size * (slope * step).sum():
                size /= 2
            w = w - size * step
        return w


def laplace(model: Softmax, draws: int, seed: int) -> Tensor:
    """Return draws of the Laplace approximation, (draws, C, d + 1)."""
    mode = model.mode()
    z = torch.randn(draws, mode.numel(), generator=torch.Generator().manual_seed(seed)).double()
    return mode + (z @ _root(model, mode).T).unflatten(-1, mode.shape)


def _root(model: Softmax, mode: Tensor) -> Tensor:
    """Return L with L Lᵀ the inverse of the Hessian at the mode."""
    return torch.linalg.inv(torch.linalg.cholesky(model.hessian(mode))).T


def next_draw(
    here: Point, point: Callable[[Tensor], Point], step: float, generator: Generator
) -> Point:
    """Return the draw after `here`; `point` makes a point of z.

    Each path's step size is within a fifth of `step`.
    """
    change, length, chance = torch.rand(3, generator=generator).tolist()
    step *= 0.8 + 0.4 * change
    (z, slope, energy), start = here, torch.randn(len(here[0]), generator=generator).double()
    momentum = start
    for _ in range(1 + int(MOST_STEPS * length)):
        half = momentum - 0.5 * step * slope
        z, slope, energy = point(z + step * half)
        momentum = half - 0.5 * step * slope
    rise = energy - here[2] + 0.5 * float(momentum @ momentum - start @ start)
    return (z, slope, energy) if chance < math.exp(-max(0.0, rise)) else here


def sample(model: Softmax, chains: int, draws: int, seed: int) -> Tensor:
    """Return draws of W, (chains, draws, C, d + 1).

    Chains begin at draws of the Laplace approximation, twice as wide.
    """
    generator = Generator().manual_seed(seed)
    mode = model.mode()
    root = _root(model, mode)

    def at(z: Tensor) -> Tensor:
        return mode + (z @ root.T).reshape(mode.shape)

    def point(z: Tensor) -> Point:
        return z, model.slope(at(z)).flatten() @ root, float(model.energy(at(z)))

    found = []
    for _ in range(chains):
        here, kept = point(2 * torch.randn(mode.numel(), generator=generator).double()), []
        for number in range(WARM_UP + draws):
            here = next_draw(here, point, STEP, generator)
            if number >= WARM_UP:
                kept.append(at(here[0]))
        found.append(torch.stack(kept))
    return torch.stack(found)


def predictive(draws: Tensor, x: Tensor) -> Tensor:
    """Return the mean of softmax over draws (N, C, d + 1), (examples, C)."""
    rows, total = with_one(x), 0.0
    for part in draws.flatten(0, -3).split(50):
        total = total + torch.softmax(part @ rows.T, -2).sum(0).T
    return total / draws.flatten(0, -3).shape[0]  # type: ignore[return-value]


def split_r_hat(values: Tensor) -> Tensor:
    """Return the split R̂ of scalars (chains, draws, …), (…)."""
    half = values.shape[1] // 2
    parts = torch.cat([values[:, :half], values[:, half : 2 * half]])
    within = parts.var(1).mean(0)
    return (((half - 1) / half * within + parts.mean(1).var(0)) / within).sqrt()


def effective_size(values: Tensor) -> Tensor:
    """Return the effective number of draws of scalars (chains, draws, …), (…).

    The sum of autocorrelations ends at the first pair of lags whose sum is not positive.
    """
    chains, draws = values.shape[:2]
    centred = values - values.mean(1, keepdim=True)
    spectrum = torch.fft.rfft(centred, 2 * draws, dim=1)
    cover = torch.fft.irfft(spectrum.abs().square(), 2 * draws, dim=1)[:, :draws] / draws
    within = cover[:, 0].mean(0) * draws / (draws - 1)
    pooled = within * (draws - 1) / draws + values.mean(1).var(0)
    rho = 1 - (within - cover.mean(0)) / pooled
    pairs = rho[: draws // 2 * 2].unflatten(0, (-1, 2)).sum(1)
    positive = (pairs > 0).double().cumprod(0)
    return chains * draws / (2 * (pairs * positive).sum(0) - 1).clamp_min(1 / (chains * draws))


def with_one(x: Tensor) -> Tensor:
    """Return features (n, d) with a last column of 1, float64."""
    return torch.cat([x.double(), torch.ones(len(x), 1, dtype=torch.float64)], 1)
