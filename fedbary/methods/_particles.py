"""Particles of a network's weights: drawn, moved by SVGD on a client's data, laid out in messages.

Particles are networks, stacked: every tensor of the state dict as (M, *shape), so that each has
buffers of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.func import functional_call, vmap

from fedbary.inference._steps import Batches
from fedbary.methods._method import Local, Tensors, is_buffer, weights_of

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


def stacked(model: Tensors, count: int) -> dict[str, Tensor]:
    """Return a network so many times, in memory of its own."""
    return {name: t.detach().expand(count, *t.shape).clone() for name, t in model.items()}


def scattered(model: Tensors, count: int, std: float, seed: int) -> dict[str, Tensor]:
    """Return networks around one: its weights with noise N(0, std²), from a seed."""
    noise = Generator().manual_seed(seed)
    particles = stacked(model, count)
    for name, tensor in particles.items():
        if not is_buffer(name, model[name]):
            drawn = torch.empty(tensor.shape, dtype=tensor.dtype).normal_(generator=noise)
            tensor.add_(drawn.to(tensor.device), alpha=std)
    return particles


def centre(particles: Tensors) -> dict[str, Tensor]:
    """Return the particles' mean network; of integers the mean is rounded."""
    means = {name: tensor.double().mean(0) for name, tensor in particles.items()}
    return {
        name: (mean if particles[name].is_floating_point() else mean.round()).to(particles[name])
        for name, mean in means.items()
    }


def named(prefix: str, particles: Tensors) -> dict[str, Tensor]:
    """Return particles under keys with a prefix."""
    return {prefix + name: tensor for name, tensor in particles.items()}


def matrix(particles: Tensors, like: Tensors) -> Tensor:
    """Return the particles' weights as rows, (M, d): what is no buffer, in the order of `like`."""
    names = weights_of(like)
    return torch.cat([particles[name].reshape(len(particles[name]), -1) for name in names], 1)


def filled(rows: Tensor, particles: Tensors, like: Tensors) -> dict[str, Tensor]:
    """Return particles with the weights of a `matrix`; their buffers stay."""
    names = weights_of(like)
    parts = rows.split([like[name].numel() for name in names], 1)
    found = dict(particles)
    for name, part in zip(names, parts, strict=True):
        found[name] = part.reshape(particles[name].shape).to(particles[name].dtype)
    return found


class Swarm:
    """A client's network at many weights at once: (M, d), of its parameters that are trained.

    Parameters
    ----------
    local : Local
        The client's round.
    particles : Tensors
        Networks, stacked, of which weights that are not trained are not looked at: these are the
        local network's.

    Attributes
    ----------
    x : Tensor
        The weights, (M, d).
    """

    def __init__(self, local: Local, particles: Tensors) -> None:
        self.local = local
        named = dict(local.model.named_parameters())
        like = next(iter(named.values()))
        count = len(next(iter(particles.values())))
        self._names = [name for name, p in named.items() if p.requires_grad]
        self._shapes = [named[name].shape for name in self._names]
        self._held = stacked(
            {n: t for n, t in local.model.state_dict().items() if n not in self._names}, count
        )
        for name, tensor in self._held.items():
            if is_buffer(name, tensor):
                tensor.copy_(particles[name])
        self.x = self.pack(particles).to(like)

    def pack(self, particles: Tensors) -> Tensor:
        """Return the rows of networks' trained parameters, (N, d), in memory of their own."""
        return torch.cat(
            [particles[name].reshape(len(particles[name]), -1) for name in self._names], 1
        )

    def networks(self) -> dict[str, Tensor]:
        """Return the networks, stacked, in the order of the state dict."""
        found = {**self._held, **self._views(self.x)}
        return {name: found[name].contiguous() for name in self.local.model.state_dict()}

    def climb(self, prior: Score, counted: float) -> dict[str, float]:
        """Go along SVGD's direction on log prior + counted · n_k · mean log-likelihood.

        A step of each batch has the size `lr`. The network then holds the particles' mean.

        Parameters
        ----------
        prior
            Its score at (M, d).
        counted
            Number of times that the data count.
        """
        local, step = self.local, SteinSteps()
        batches = Batches(local.x, local.y, local.training, local.seed, local.augment)
        each = vmap(self._loss, in_dims=(0, 0, None, None), randomness="different")
        local.model.train()
        for x, y in batches:
            here = self.x.detach().requires_grad_()
            losses = each(self._views(here), self._held, x, y)
            (gradients,) = torch.autograd.grad(losses.sum(), here)
            scores = prior(self.x) - counted * len(local.x) * gradients
            self.x.add_(step(direction(self.x, scores)), alpha=local.training.lr)
            batches.count(losses.detach().mean(), y)
        local.load(centre(self.networks()))
        return {"train_nll": batches.mean_nll}

    def _views(self, rows: Tensor) -> dict[str, Tensor]:
        parts = rows.split([shape.numel() for shape in self._shapes], 1)
        held = zip(self._names, self._shapes, parts, strict=True)
        return {name: part.reshape(len(rows), *shape) for name, shape, part in held}

    def _loss(
        self, weights: Mapping[str, Tensor], held: Mapping[str, Tensor], x: Tensor, y: Tensor
    ) -> Tensor:
        return self.local.nll(functional_call(self.local.model, {**weights, **held}, (x,)), y)
