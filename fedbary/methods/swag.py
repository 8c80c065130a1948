"""SWAG-diagonal: a Gaussian of the iterates of SGD at a constant rate, at every client.

A client runs SGD from θ_g; of the iterates θ_t after the burn-in it sends moments,

    m_k = mean θ_t,      v_k = scale · (mean θ_t² − m_k²),

and the server aggregates N(m_k, v_k) under a rule of this project. The next round starts from m,
and predictions are of networks drawn from N(m, v).

The iterates' variance grows with rate, momentum and 1/batch size, so `scale` must be tuned on
validation data. A weight that a client's data do not reach does not move, so its v_k is near 0. In
a product (RKLB) that client would decide the weight. So the default is the Wasserstein barycentre.
The paper takes one iterate per epoch. Here every step's counts, as rounds are short, with a local
epoch of burn-in.

Moments of batch norm are those of the last iterate.

It assumes that SGD's noise at that rate has the posterior's shape.

Messages: 1 model down, 2 up. Clients keep nothing.

Cost: a step costs three passes over the weights more. The server keeps v.

Use it as the cheapest posterior of a network that is trained by SGD anyway.

Reference: Maddox et al., A Simple Baseline for Bayesian Uncertainty in Deep Learning, NeurIPS 2019.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from fedbary.aggregation import aggregate
from fedbary.errors import SettingError
from fedbary.gaussian import Posterior
from fedbary.methods import _sites
from fedbary.methods._descent import Descent
from fedbary.methods._method import (
    ALONG_STEPS,
    Fitted,
    Local,
    Method,
    Reply,
    Server,
    Tensors,
    weighted_mean,
    weights_of,
)
from fedbary.parts.parameters import Number, Positive
from fedbary.predictive import Predictive


@dataclass(frozen=True)
class SWAG(Method):
    """Stochastic weight averaging, Gaussian and diagonal (Maddox et al. 2019), for point weights.

    Parameters
    ----------
    burn_in : int
        Number of a round's epochs before iterates are taken; it must leave one.
    scale : float
        Factor of the iterates' variance; the paper's ½ has a second half of low rank beside it.
    rule : str
        Rule that the server aggregates by.
    """

    burn_in: Number = 1
    scale: Positive = 1.0
    rule: Literal["WB", "RKLB", "EAA", "GAA", "AALV", "FKLB"] = "WB"

    defaults = ALONG_STEPS
    deterministic = True
    draws_around = True

    def check(self, clients: int, epochs: int) -> None:
        """Refuse a round that leaves no epoch to take iterates from."""
        if epochs <= self.burn_in:
            allowed = f"above burn_in, {self.burn_in}, so that an epoch is left to take"
            raise SettingError("local_epochs", epochs, allowed)

    def fit(self, local: Local, received: Tensors, kept: Tensors) -> Fitted:
        """Run SGD and return the moments of its iterates."""
        self.check(1, local.training.epochs)
        local.load(received)
        descent = Descent(local)
        point = descent.vectors.points.value
        mean, squares, taken = torch.zeros_like(point), torch.zeros_like(point), 0
        for epoch in descent:
            if epoch >= self.burn_in:
                taken += 1
                step = point - mean
                mean.add_(step, alpha=1 / taken)
                squares.addcmul_(step, point - mean)
        point.copy_(mean)
        log_var = (squares * (self.scale / taken)).log()
        model = local.state()
        frozen = {n: torch.full_like(model[n], -_sites.MOST) for n in weights_of(model)}
        found = _sites.log_vars_to_state({**frozen, **descent.vectors.named(log_var)})
        return Fitted({**model, **found}, descent.metrics)

    def reply_like(self, model: Tensors) -> Tensors:
        """Return a model, and a log-variance for each of its weights."""
        return {
            **model,
            **_sites.log_vars_to_state({name: model[name] for name in weights_of(model)}),
        }

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> tuple[Tensors, Tensors]:
        """Take the rule's aggregate of the Gaussians; buffers are averaged."""
        names = weights_of(server.model)
        posteriors = []
        for reply in replies:
            means = {name: reply.tensors[name] for name in names}
            posteriors.append(Posterior(means, _sites.log_vars_of(reply.tensors)))
        found = aggregate(self.rule, posteriors, [reply.weight for reply in replies])
        model = {**weighted_mean(replies, list(server.model)), **found.mean}
        return model, _sites.log_vars_to_state(found.log_var)

    def predictive(self, model: Tensors, state: Tensors) -> Predictive:
        """Return the Gaussian around the global model."""
        return _sites.predictive(model, state)
