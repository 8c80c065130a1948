"""Stein variational gradient descent: particles that repel one another and climb a log density.

Particles x_1 … x_M of d weights go along

    φ(x_i) = (1/M) Σ_j [k(x_j, x_i) ∇log p(x_j) + ∇_{x_j} k(x_j, x_i)],

k(x, y) = exp(−‖x − y‖² / 2h²), h² = med² / (2 log(M + 1)) with med the median distance between two
particles. One particle climbs the gradient. Each number's step is divided by the root of the mean
square of its φ, of weight 0.9, so that it is about the rate, whatever the density's scale.

In a dimension much above M particles come to lie closer together than the density's draws do (Ba et
al. 2022): the variances of networks' weights are then too small.

Reference: Liu and Wang, Stein Variational Gradient Descent, NeurIPS 2016.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

LEAST_VAR = 1e-10
"""The standard deviation of a weight in which all particles agree."""

_MEMORY, _TINY = 0.9, 1e-6

Score = Callable[[Tensor], Tensor]
"""∇log p at the rows of a matrix, (M, d) to (M, d)."""


class Smooth:
    """The log density of smoothed particles, whose gradient is 0 nowhere but at its modes.

    q(x) = Σ_j N(x; c_j, u) / M. With a `width` c_j = x_j, u = width². Without one, m and v being
    the particles' mean and variance by weight, Scott's h = M^(−1/(d+4)) and West's shrinkage,

        c_j = m + √(1 − h²) (x_j − m),      u = h² v:

    q then has mean m and variance v by weight, in any dimension; for large d it is N(m, v). The sum
    over j is taken of logarithms. As a product of densities it would be 0 in floating point at a
    hundred weights and more, and so would its gradient.

    Parameters
    ----------
    particles : Tensor
        (M, d), M from 2.
    width : float
        The kernels' standard deviation; 0: by the particles' spread.

    Attributes
    ----------
    precision : Tensor
        1 over the density's variance by weight, (d,).

    References
    ----------
    West, Approximating Posterior Distributions by Mixture, JRSS B 1993.
    """

    def __init__(self, particles: Tensor, width: float = 0.0) -> None:
        count, weights = particles.shape
        if width:
            shrinkage, var = 1.0, torch.full_like(particles[0], width**2)
        else:
            h = count ** (-1 / (weights + 4))
            shrinkage = math.sqrt(1 - h**2)
            var = h**2 * particles.var(0, correction=0).clamp_min(LEAST_VAR)
        self._mean, self._std = particles.mean(0), var.sqrt()
        self.precision = 1 / (particles.var(0, correction=0) * shrinkage**2 + var)
        self._centres = shrinkage * (particles - self._mean) / self._std

    def __call__(self, x: Tensor) -> Tensor:
        """Return ∇log q at the rows of x, (N, d)."""
        offset = (x - self._mean) / self._std
        squares = torch.cdist(offset, self._centres).square()
        nearest = (-squares / 2).softmax(1) @ self._centres
        return (nearest - offset) / self._std


@dataclass(frozen=True)
class Normal:
    """The log density of N(0, std²) in every weight, with its `precision`, (1,)."""

    std: float

    def __call__(self, x: Tensor) -> Tensor:
        """Return its score at the rows of x, (N, d)."""
        return -x / self.std**2

    @property
    def precision(self) -> Tensor:
        """1/std²."""
        return torch.tensor([self.std**-2])


def direction(x: Tensor, scores: Tensor) -> Tensor:
    """Return φ for particles and ∇log p at each, (M, d) both."""
    count, x = len(x), x - x.mean(0)  # distances lose digits far from 0
    squares = torch.cdist(x, x).square()
    pairs = squares[~torch.eye(count, dtype=torch.bool, device=x.device)]
    med = pairs.median() if count > 1 else squares.new_ones(())
    h_squared = (med / (2 * math.log(count + 1))).clamp_min(LEAST_VAR)
    kernel = (-squares / (2 * h_squared)).exp()
    repulsion = (kernel.sum(1, keepdim=True) * x - kernel @ x) / h_squared
    return (kernel @ scores + repulsion) / count


class SteinSteps:
    """Steps along φ, number by number divided by the root of its mean square so far."""

    def __init__(self) -> None:
        self._squares: Tensor | None = None

    def __call__(self, phi: Tensor) -> Tensor:
        """Return a step of about 1 in each number."""
        if self._squares is None:
            self._squares = phi.square()
        else:
            self._squares.mul_(_MEMORY).addcmul_(phi, phi, value=1 - _MEMORY)
        return phi / (_TINY + self._squares.sqrt())


def descended(start: Tensor, score: Score, steps: int, rate: float) -> Tensor:
    """Return particles after so many steps on a score that is known.

    A step of a weight is `rate` times the particles' standard deviation in it at the start, and
    falls to 0 linearly.
    """
    x, step = start.clone(), SteinSteps()
    scale = rate * start.std(0, correction=0).clamp_min(LEAST_VAR**0.5)
    for left in range(steps, 0, -1):
        x.addcmul_(scale, step(direction(x, score(x))), value=left / steps)
    return x
