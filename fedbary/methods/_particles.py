"""Particles of a network's weights: drawn, moved by SVGD on a client's data, laid out in messages.

Particles are networks, stacked: every tensor of the state dict as (M, *shape), so that each has
buffers of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Generator, Tensor
from torch.func import functional_call, vmap

from fedbary.inference.shared.vectors import Batches
from fedbary.methods._stein import Score, SteinSteps, direction
from fedbary.methods.shared.method import Local, Tensors
from fedbary.methods.shared.server_steps import is_buffer, weights_of


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
