"""Steps of a stochastic-gradient sampler of a client's own posterior, at the rate it is given.

The target is exp(−U_k(θ)), U_k = n_k · (mean NLL + ½ decay ‖θ‖²), with `weight_decay` as the decay.
That is a prior of precision n_k · decay at client k. The clients' product is the prior of all data,
of precision n · decay. With rate η, friction α and standard normal z a step of SGHMC is

    u ← (1 − α) u − η (∇U_k / n_k) + √(2 α η T / n_k) z,      θ ← θ + u,

whose variance of θ is that of exp(−U_k / T) for small η and gradients of all data. With α = 1 it is
SGLD at the step η/n_k. Mini-batches of B examples add noise of their own. The chain is then at the
temperature T + (η/α) h n_k/(2B), h being the curvature of the mean NLL. `_chain` sets a rate by it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from fedbary.inference._steps import Steps
from fedbary.inference.shared.vectors import Vectors
from fedbary.methods.shared.method import Local
from fedbary.variational.layers import normal_like


class Sampler:
    """SGHMC on a client's point weights, which are one vector; going through it takes the steps.

    Parameters
    ----------
    local : Local
        The client's round; its network holds what the sampler starts from, its `lr` is η.
    friction : float
        α, above 0 to 1; 1 is SGLD.
    temperature : float
        T, from 0; 1 samples the posterior.
    steps : int, optional
        Number of steps, by default all of the round's epochs.

    Attributes
    ----------
    vectors : Vectors
        The network's parameters, `vectors.points.value`.
    """

    def __init__(
        self, local: Local, friction: float, temperature: float = 1.0, steps: int | None = None
    ) -> None:
        self.local, self.friction, self.temperature = local, friction, temperature
        self.vectors = Vectors(local.model, 1.0)
        self.steps = Steps(local, self.vectors.points, most=steps)

    def __iter__(self) -> Iterator[int]:
        """Take the steps; yield the number of each, from 0."""
        local, points, training = self.local, self.vectors.points, self.local.training
        std = math.sqrt(2 * self.friction * training.lr * self.temperature / len(local.x))
        velocity = torch.zeros_like(points.value)
        for step, _ in enumerate(self.steps):
            points.grad.add_(points.value, alpha=training.weight_decay)
            velocity.mul_(1 - self.friction).sub_(points.grad, alpha=training.lr)
            velocity.add_(normal_like(velocity, self.steps.batches.noise), alpha=std)
            points.value.add_(velocity)
            yield step

    @property
    def metrics(self) -> dict[str, float]:
        """Return the mean NLL of the last epoch, in nats."""
        return self.steps.metrics
