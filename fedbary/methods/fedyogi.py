"""FedYogi: the server takes the clients' mean step as a gradient of Yogi, an additive Adam.

With the pseudo-gradient Δ = θ − θ̄ of a round,

    m ← β₁ m + (1 − β₁) Δ,      v ← v − (1 − β₂) Δ² sign(v − Δ²),      θ ← θ − η m/(√v + τ).

v falls no faster than Adam's where gradients become small.

It assumes point weights.

Messages: the model once each way, as under FedAvg. Clients keep nothing.

Cost: a round of FedAvg; the server keeps m and v.

Use it where FedAdam is unsteady because gradients are rarely large.

Reference: Reddi et al., Adaptive Federated Optimization, ICLR 2021, Algorithm 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fedbary.methods._method import Method, Reply, Server, Tensors, weighted_mean, weights_of
from fedbary.parts.parameters import BelowOne, Positive


@dataclass(frozen=True)
class FedYogi(Method):
    """Federated averaging with Yogi at the server (Reddi et al. 2021), for point weights.

    Parameters
    ----------
    server_lr : float
        η, the server's step size.
    beta1, beta2 : float
        Decay a round of the mean of the steps (beta1) and of their squares (beta2).
    tau : float
        τ, in units of a weight's step.
    """

    server_lr: Positive = 0.01
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.99
    tau: Positive = 0.001

    deterministic = True

    def start(self, model: Tensors) -> Tensors:
        """Return m = 0 and v = τ²."""
        names = weights_of(model)
        first = {f"first/{name}": torch.zeros_like(model[name]) for name in names}
        return first | {f"second/{n}": torch.full_like(model[n], self.tau**2) for n in names}

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> tuple[Tensors, Tensors]:
        """Return the model after a step of Yogi, and m and v."""
        after, state = weighted_mean(replies, list(server.model)), dict(server.state)
        for name in weights_of(server.model):
            gradient = server.model[name] - after[name]
            square, second = gradient.square(), server.state[f"second/{name}"]
            first = self.beta1 * server.state[f"first/{name}"] + (1 - self.beta1) * gradient
            second = second - (1 - self.beta2) * square * (second - square).sign()
            state |= {f"first/{name}": first, f"second/{name}": second}
            after[name] = server.model[name] - self.server_lr * first / (second.sqrt() + self.tau)
        return after, state
