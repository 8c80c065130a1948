"""Diagonal Laplace: point weights, and a Gaussian of the loss's curvature around them.

A client trains point weights θ_k from θ_g by the local inference, then takes a diagonal curvature
F_k per example, one example at a time. `curvature` says which:

    fisher:  F_k = (1/n_k) Σ_i (∂ −log p(y_i | x_i, θ_k))², the empirical Fisher,
    ggn:     F_k = (1/n_k) Σ_i diag J_iᵀ Λ_i J_i, the generalised Gauss-Newton matrix,

J the outputs' Jacobian and Λ the loss's Hessian by the outputs. With the prior N(0, 1/λ),
counted once, client k's share of it is n_k/n, and its posterior N(θ_k, 1/(n_k F_k + λ n_k/n)). The
server multiplies these,

    s = Σ_k n_k F_k + λ,      θ = Σ_k (n_k F_k + λ n_k/n) θ_k / s,

If only some clients reply, their sum is scaled up: it is divided by their share of all clients' n
examples. (A strategy without a roster knows only the replies' examples.) The next round starts from
θ. Networks drawn from N(θ, 1/s) predict.

Draws are too wide in directions in which F is near 0, and a smaller λ makes them wider. So λ is
large by default. It is not the prior in training: that is `weight_decay` (λ/n is the same prior).
With equal priors, linear models with orthogonal features are exact under ggn. Under fisher, the
default, they are exact only in expectation: F uses the labels that occurred. With 280 examples,
precisions were .77 to .82 of the truth.

It assumes that the loss is quadratic around θ_k, without interactions of weights. With equal F it
is FedAvg.

Messages: 1 model down, 2 up. Clients keep nothing.

Cost: a pass over the data for F, about one to two epochs more per round; ggn takes one for each
output. Per-example gradients take some 64 MB at a time. The server keeps s.

Use it to make the network of an existing FedAvg uncertain.

Traps of public code: the squared gradient of a *batch* is the Fisher over the batch's size. A
constant beside Σ F in the denominator alone shrinks every weight towards 0.

References: MacKay, A Practical Bayesian Framework for Backpropagation Networks, 1992; Daxberger et
al., Laplace Redux, NeurIPS 2021.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from fedbary.methods import _sites
from fedbary.methods._descent import fisher, gauss_newton
from fedbary.methods._method import (
    Fitted,
    Local,
    Method,
    Reply,
    Server,
    Tensors,
    all_examples,
    shares,
    weighted_mean,
    weights_of,
)
from fedbary.parts.parameters import Positive
from fedbary.predictive import Predictive

FISHER = "fisher/"
"""The prefix of the keys of Fisher diagonals."""

CURVATURES = {"fisher": fisher, "ggn": gauss_newton}
"""From a client's round to its diagonal curvature."""


@dataclass(frozen=True)
class Laplace(Method):
    """Diagonal Laplace approximations, multiplied, for point weights.

    Parameters
    ----------
    prior_precision : float
        λ, the precision of the prior that the draws see.
    curvature : str
        fisher: of the labels that occurred, in one pass. ggn: exact for linear models.
    """

    prior_precision: Positive = 1000.0
    curvature: Literal["fisher", "ggn"] = "fisher"

    deterministic = True
    draws_around = True

    def fit(self, local: Local, received: Tensors, kept: Tensors) -> Fitted:
        """Train point weights, and take their curvature."""
        local.load(received)
        metrics = local.infer(local.prior)
        found = {
            FISHER + name: tensor for name, tensor in CURVATURES[self.curvature](local).items()
        }
        return Fitted({**local.state(), **found}, metrics)

    def reply_like(self, model: Tensors) -> Tensors:
        """Return a model, and a Fisher for each of its weights."""
        return {**model, **{FISHER + name: model[name] for name in weights_of(model)}}

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> tuple[Tensors, Tensors]:
        """Multiply the clients' Gaussians."""
        examples = all_examples(server, replies)
        model = weighted_mean(replies, list(server.model))
        mean, curvature = pooled(replies, weights_of(server.model), self.prior_precision / examples)
        log_vars = {name: -(examples * tensor).log() for name, tensor in curvature.items()}
        like = server.model
        state = _sites.log_vars_to_state(
            {name: t.to(like[name].dtype) for name, t in log_vars.items()}
        )
        return {**model, **mean}, state

    def predictive(self, model: Tensors, state: Tensors) -> Predictive:
        """Return the Gaussian around the global model."""
        return _sites.predictive(model, state)


def pooled(
    replies: Sequence[Reply], names: Sequence[str], prior: float, held: Tensors | None = None
) -> tuple[Tensors, dict[str, torch.Tensor]]:
    """Return Σ w S_k θ_k / Σ w S_k and Σ w S_k for S_k = F_k + held + prior, per example.

    The first in the weights' dtypes, the second in float64. A Fisher below 0, which none is, counts
    as 0.
    """
    means, precisions = {}, {}
    for name in names:
        like = replies[0].tensors[name]
        total, weighted = torch.zeros(2, *like.shape, dtype=torch.float64).unbind(0)
        known = prior if held is None else held[name].double() + prior
        for reply, weight in zip(replies, shares(replies), strict=True):
            precision = weight * (reply.tensors[FISHER + name].double().clamp_min(0) + known)
            total += precision
            weighted += precision * reply.tensors[name].double()
        means[name], precisions[name] = (weighted / total).to(like.dtype), total
    return means, precisions
