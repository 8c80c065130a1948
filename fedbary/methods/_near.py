"""SGD of point weights near others: mean NLL + ½/n_k Σ s (θ − target)²."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedbary.inference._vectors import Batches, Momentum, Vectors
from fedbary.methods._method import Local, Tensors

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
        Of each weight the probability that it is not 0 in a step.
    """
    q = Vectors(local.model, 1.0)
    batches = Batches(local.x, local.y, local.training, local.seed, local.augment)
    sgd, towards, value = Momentum(q, local.training, 0.0), pull(q), q.points.value
    lr, scale = local.training.lr, len(local.x) * (1 - local.training.momentum)
    local.model.train()
    for x, y in batches:
        q.points.grad.zero_()
        whole = value.clone()
        if keep < 1:
            kept = torch.empty_like(value).bernoulli_(keep, generator=batches.noise)
            value.mul_(kept)
        loss = local.nll(local.model(x), y)
        loss.backward()
        batches.count(loss, y)
        value.copy_(whole)
        if keep < 1:
            q.points.grad.mul_(kept)
        target, precision = towards(value)
        gamma = lr / scale * precision
        value.sub_(sgd.update(), alpha=lr).add_(gamma * target).div_(1 + gamma)
    local.model.zero_grad(set_to_none=True)
    return {"train_nll": batches.mean_nll}


def packed(q: Vectors, tensors: Tensors) -> Tensor:
    """Return named tensors as a vector in the order of `q.points`."""
    return q.points.pack([tensors[name] for name in q.point_names])
