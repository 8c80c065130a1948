"""Stochastic-gradient samplers of a client's own posterior at temperature 1.

The target is exp(−U_k(θ)), U_k = n_k · (mean NLL + ½ decay ‖θ‖²), `weight_decay` being the decay:
a prior of precision n_k · decay at client k, whose product over the clients is that of all data,
n · decay. With rate η, friction α and standard normal z a step of SGHMC is

    u ← (1 − α) u − η (∇U_k / n_k) + √(2 α η T / n_k) z,      θ ← θ + u,

whose variance of θ is that of exp(−U_k / T) for small η. With α = 1 it is SGLD at the step η/n_k.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice

import torch
from torch import Tensor

from fedbary.inference._vectors import Batches, Vectors
from fedbary.methods._method import Local
from fedbary.variational.layers import normal_like


class Sampler:
    """SGHMC on a client's point weights, which are one vector; going through it takes the steps.

    Each step yields whether it was one of those with noise, after which a sample may be taken.

    Parameters
    ----------
    local : Local
        The client's round; its network holds what the sampler starts from.
    friction : float
        α, above 0 to 1; 1 is SGLD.
    temperature : float
        T, from 0; 1 samples the posterior.
    cycles : int
        Into so many parts the round's steps are divided, each with a cosine from `lr` towards 0;
        0: a constant rate.
    noisy_epochs : int
        Noise is added in so many last epochs of a cycle.
    steps : int, optional
        How many steps are taken, by default all of the round's epochs.

    Attributes
    ----------
    vectors : Vectors
        The network's parameters, `vectors.points.value`.
    """

    def __init__(
        self,
        local: Local,
        friction: float,
        temperature: float = 1.0,
        cycles: int = 0,
        noisy_epochs: int = 2**31,
        steps: int | None = None,
    ) -> None:
        self.local, self.friction, self.temperature = local, friction, temperature
        self.constant, self.cycles = cycles == 0, max(1, cycles)
        self.vectors = Vectors(local.model, 1.0)
        self.batches = Batches(local.x, local.y, local.training, local.seed, local.augment)
        epoch_steps = math.ceil(len(local.x) / local.training.batch_size)
        self.steps = local.training.epochs * epoch_steps if steps is None else steps
        self.noisy_steps = noisy_epochs * epoch_steps

    def is_noisy(self, step: int) -> bool:
        """Whether a step, from 0, has noise."""
        left = self.steps - self._gone(step)
        return left <= self.cycles * self.noisy_steps

    def __iter__(self) -> Iterator[bool]:
        """Take the steps; yield of each whether it had noise."""
        local, points, training = self.local, self.vectors.points, self.local.training
        velocity = torch.zeros_like(points.value)
        local.model.train()
        for step, (x, y) in enumerate(islice(self.batches, self.steps)):
            points.grad.zero_()
            loss = local.nll(local.model(x), y)
            loss.backward()
            self.batches.count(loss, y)
            rate = self._rate(step)
            points.grad.add_(points.value, alpha=training.weight_decay)
            velocity.mul_(1 - self.friction).sub_(points.grad, alpha=rate)
            if self.is_noisy(step):
                std = math.sqrt(2 * self.friction * rate * self.temperature / len(local.x))
                velocity.add_(normal_like(velocity, self.batches.noise), alpha=std)
            points.value.add_(velocity)
            yield self.is_noisy(step)
        local.model.zero_grad(set_to_none=True)

    def _rate(self, step: int) -> float:
        rate = self.local.training.lr
        if self.constant:
            return rate
        return rate * 0.5 * (1 + math.cos(math.pi * self._gone(step) / self.steps))

    def _gone(self, step: int) -> int:
        """Return how much of its cycle is gone at a step, in parts of a whole that is `steps`."""
        return step * self.cycles % self.steps

    @property
    def metrics(self) -> dict[str, float]:
        """Return the mean NLL of the last epoch, in nats."""
        return {"train_nll": self.batches.mean_nll}

    def named(self, vectors: Tensor) -> dict[str, Tensor]:
        """Return the parts of a stack of vectors (M, d) by parameter, (M, *shape)."""
        rows = [self.vectors.points.views(vector) for vector in vectors]
        parts = zip(self.vectors.point_names, zip(*rows, strict=True), strict=True)
        return {name: torch.stack(list(views)) for name, views in parts}


def samples(sampler: Sampler, count: int) -> Tensor:
    """Run a sampler and return so many of its iterates, (count, d), at equal distances.

    They are taken from the steps with noise, the last sample after the last of these; of fewer
    steps than samples some are taken twice.
    """
    noisy = [step for step in range(sampler.steps) if sampler.is_noisy(step)]
    chosen = [noisy[math.ceil((place + 1) * len(noisy) / count) - 1] for place in range(count)]
    value = sampler.vectors.points.value
    taken = [value.clone() for step, _ in enumerate(sampler) for _ in range(chosen.count(step))]
    return torch.stack(taken)
