"""SGD of point weights near others: mean NLL + ½/n_k Σ s (θ − target)²."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from fedbary.inference._steps import Steps
from fedbary.inference.shared.vectors import Momentum, Vectors
from fedbary.methods.shared.method import Local, Tensors

Pull = Callable[[Tensor], tuple[Tensor, Tensor | float]]
"""From the weights θ (P,) what they are pulled to, and s, the precision of that pull."""


def fit_near(local: Local, pull: Callable[[Vectors], Pull], keep: float = 1.0) -> dict[str, float]:
    """Train the network in place by SGD with momentum, and return metrics of the fit.

    The pull is a proximal step, so that any s is stable: with the velocity u of the mean NLL and
    γ = lr s / (n_k (1 − β)),

        θ ← (θ − lr u + γ target) / (1 + γ).

    Parameters
    ----------
    local
        Whose network holds what training starts from; its parameters are points.
    pull
        Given the network's parameters as vectors, the pull.
    keep
        Probability of each weight not to be 0 in a step.
    """
    q = Vectors(local.model, 1.0)
    sgd, towards, value = Momentum(q, local.training, 0.0), pull(q), q.points.value
    lr, scale = local.training.lr, len(local.x) * (1 - local.training.momentum)

    @contextmanager
    def thinned(x: Tensor, y: Tensor) -> Iterator[Tensor]:
        whole = value.clone()
        kept = torch.empty_like(value).bernoulli_(keep, generator=steps.batches.noise)
        value.mul_(kept)
        yield local.nll(local.model(x), y)
        value.copy_(whole)
        q.points.grad.mul_(kept)

    steps = Steps(local, q.points, loss=thinned if keep < 1 else None)
    for _ in steps:
        target, precision = towards(value)
        gamma = lr / scale * precision
        value.sub_(sgd.update(), alpha=lr).add_(gamma * target).div_(1 + gamma)
    return steps.metrics


def packed(q: Vectors, tensors: Tensors) -> Tensor:
    """Return named tensors as a vector in the order of `q.points`."""
    return q.points.pack([tensors[name] for name in q.point_names])
