"""A client's samples at temperature 1 in mini-batches: SGD, then a chain of a rate set by n_k.

The chain is that of `Sampler`, on U_k = n_k · (mean NLL + ½ decay ‖θ‖²). Batches of B examples
bring noise of their own: with h the curvature of the mean NLL, a chain of rate η and friction α is
at the temperature

    T + (η/α) h n_k / (2B)

and not at T, where its steps are so fast that batches are as good as independent. At SGD's rates
that is many times T. So the rate is

    η/α = min(lr / (1 − β), s/h),     s = min(1, 0.06 (2 − α)/α, max(2B/(3 n_k), B/(30 d))),

β being SGD's momentum, h the largest curvature where the chain starts and d the number of weights.
The terms say, in their order:

- No weight moves faster than SGD would.
- A step is so short that its own error in the variance is about 3 %.
- At s = 2B/(3 n_k) a chain forgets within one and a half epochs. In an epoch every example has
  counted once, so that the batches' noise all but cancels: 2 % are left. An example of a last,
  smaller batch counts as any other.
- Few weights, d < n_k/30, may go faster. There gradients are g_B(θ) − g_B(θ₀) + g(θ₀), with the
  whole data's gradient where the chain starts, θ₀. The batches' noise then falls with the distance
  from θ₀, about by 3 d/n_k. Networks with dropout, batch norm or changed images are taken for many
  weights: two passes of a batch would differ in more than the weights.

While samples are dropped, the chain goes up to four times as fast at first, to be wide in flat
directions. It is too warm then, and at its own rate before the first sample is taken.

Before it the client trains by SGD as under FedAvg, to where the chain starts. There
`fedbary.methods._curvature` finds h.

More weights than examples, d > n_k, leave directions without any curvature. There the posterior is
as wide as its prior, and without one a chain would walk until the network is lost. So in N steps it
may walk a quarter of the weights' root mean square r there: η/α ≤ n_k r²/(32 N). On digits (ten
clients of 130 images, six rounds) SGHMC is then right on 82 %, and without it at chance.

Directions of a curvature far below h have moved little when the last sample is taken: there samples
are too close together, not too far apart. The batches' share does not shrink with T: the 2 % are 20
at T = 0.1.

References: Chen, Fox and Guestrin, Stochastic Gradient Hamiltonian Monte Carlo, ICML 2014; Baker,
Fearnhead, Fox and Nemeth, Control Variates for Stochastic Gradient MCMC, 2019.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from fedbary.data.batches import scale_pixels
from fedbary.inference._steps import Steps, Vectors
from fedbary.methods._curvature import curvature_at_start
from fedbary.methods._descent import Descent
from fedbary.methods._method import Local
from fedbary.seeds import derive_seed
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


BURN_IN, HURRIED = 4, 3
"""Numbers of times `thinning` steps: those that are dropped, and those in which the chain
hurries.
"""

HURRY = 4
"""The most by which a hurrying chain is faster."""

WALK = 0.25
"""The farthest walk of a weight without curvature, as a part of the weights' root mean square."""

CROWD = 30
"""So many examples a weight let a chain go faster than once through the data."""


def speed(batch_size: int, examples: int, weights: int, friction: float) -> float:
    """Return s, how much of the way to the mode a step may go in the steepest direction.

    A chain of friction 1 goes the part s of it a step, one of friction α the part α s.
    """
    batch = min(batch_size, examples)
    by_noise = max(2 * batch / (3 * examples), batch / (CROWD * weights))
    most = by_step(friction)
    return most if batch == examples else min(most, by_noise)


def by_step(friction: float) -> float:
    """Return the largest s whose own error in the variance is some 3 %."""
    return min(1.0, 0.06 * (2 - friction) / friction)


class Chain:
    """SGHMC from where a client's SGD ends, at temperature T in mini-batches.

    Parameters
    ----------
    local : Local
        The client's round; its network holds what SGD starts from.
    friction : float
        α, above 0 to 1; 1 is SGLD.
    temperature : float
        T, from 0; 1 samples the posterior.
    """

    def __init__(self, local: Local, friction: float, temperature: float) -> None:
        self.local, self.friction, self.temperature = local, friction, temperature
        self.path = Descent(local)

    def samples(self, count: int, thinning: int) -> Tensor:
        """Train, then return so many iterates, (count, d), `thinning` steps apart."""
        for _ in self.path:
            pass
        self.points = Vectors(self.local.model, 1.0).points  # SGD's have let go of the gradients
        taken = [
            self.points.value.clone()
            for step in self._steps((BURN_IN + count) * thinning, HURRIED * thinning)
            if step > BURN_IN * thinning and step % thinning == 0
        ]
        return torch.stack(taken)

    def named(self, vectors: Tensor) -> dict[str, Tensor]:
        """Return the parts of a stack of vectors, (M, *shape) by parameter."""
        rows = [self.path.vectors.named(vector) for vector in vectors]
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}

    def _steps(self, count: int, hurried: int) -> Iterator[int]:
        """Take so many steps, hurry in the first; yield the number of each, from 1."""
        local, points, friction = self.local, self.points, self.friction
        rates, in_epoch = self._rates(count), self._in_epoch
        centre = points.value.clone() if self._is_controlled else None
        of_all = self._gradient_of_all() if self._is_controlled else torch.zeros(())
        training = replace(local.training, epochs=math.ceil(count / in_epoch))
        job = replace(local, training=training, seed=derive_seed(local.seed, "chain"))
        steps = Steps(job, points, most=count)
        velocity = torch.zeros_like(points.value)
        for step, (x, y) in enumerate(steps, 1):
            rate = friction * rates[step > hurried]
            noise = math.sqrt(2 * friction * rate * self.temperature / len(local.x))
            gradient = points.grad.clone()
            if centre is not None:
                here = points.value.clone()
                points.value.copy_(centre)
                gradient -= self._gradient(x, y)
                points.value.copy_(here)
            gradient.mul_(len(y) * in_epoch / len(local.x)).add_(of_all.to(gradient))
            gradient.add_(points.value, alpha=local.training.weight_decay)
            velocity.mul_(1 - friction).sub_(gradient, alpha=rate)
            velocity.add_(normal_like(velocity, steps.batches.noise), alpha=noise)
            points.value.add_(velocity)
            yield step

    def _rates(self, count: int) -> tuple[float, float]:
        """Return η/α of so many steps, while the chain hurries and after it."""
        local, training = self.local, self.local.training
        curvature = training.weight_decay + curvature_at_start(local, self.points)
        weights = len(self.points.value) if self._may_be_controlled else len(local.x)
        most = speed(training.batch_size, len(local.x), weights, self.friction)
        fast = min(by_step(self.friction), HURRY * most)
        plain = training.lr / (1 - training.momentum)
        if len(self.points.value) > len(local.x):
            farthest = (WALK * self.points.value).square().mean()
            plain = min(plain, float(farthest) * len(local.x) / (2 * count))
        if curvature <= 0:
            return plain, plain
        return min(plain, fast / curvature), min(plain, most / curvature)

    @property
    def _may_be_controlled(self) -> bool:
        """Return whether two passes of a batch differ in the weights alone."""
        random = (_BatchNorm, _DropoutNd)
        modules = self.local.model.modules()
        return not (self.local.augment or any(isinstance(module, random) for module in modules))

    @property
    def _is_controlled(self) -> bool:
        few = CROWD * len(self.points.value) < len(self.local.x)
        return few and self._in_epoch > 1 and self._may_be_controlled

    @property
    def _in_epoch(self) -> int:
        return math.ceil(len(self.local.x) / self.local.training.batch_size)

    def _gradient(self, x: Tensor, y: Tensor) -> Tensor:
        """Return that of the mean NLL of a batch."""
        self.points.grad.zero_()
        self.local.nll(self.local.model(x), y).backward()
        return self.points.grad.clone()

    def _gradient_of_all(self) -> Tensor:
        """Return that of the mean NLL of all examples."""
        local, size = self.local, self.local.training.batch_size
        parts = zip(local.x.split(size), local.y.split(size), strict=True)
        total = torch.zeros_like(self.points.value)
        for x, y in parts:
            total.add_(self._gradient(scale_pixels(x), y), alpha=len(y) / len(local.x))
        return total
