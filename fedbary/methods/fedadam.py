"""FedAdam: the server treats the clients' mean step as a gradient, and follows it by Adam.

Clients begin at θ, and their mean, weighed by size, is θ̄. With Δ = θ − θ̄,

    m ← β₁ m + (1 − β₁) Δ,      v ← β₂ v + (1 − β₂) Δ²,      θ ← θ − η m / (√v + τ).

Every weight moves by about η per round, however small its step, if that is above τ. At the defaults
it moves by 2.1 η at most while steps keep their size. Buffers are averaged.

η must be tuned: the reference tunes it for every task, from 0.001 to 1.

It assumes a common optimum, and point weights; the prediction is a point.

Messages: the model once each way, as under FedAvg. Clients keep nothing.

Cost: local steps cost FedAvg's; the server keeps m and v, 2 numbers per weight.

Use it for models whose tensors (such as embeddings) move at different rates, with η tuned for the
task.

Reference: Reddi et al., Adaptive Federated Optimization, ICLR 2021, Algorithm 2, as published
without a correction of the first rounds' bias; Flower's FedAdam has one. The paper starts v at τ²
or above; here it starts at 0, so that first steps are larger.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedbary.methods._server_steps import ServerAdam, SteppedMethod
from fedbary.parts.parameters import BelowOne, Positive


@dataclass(frozen=True)
class FedAdam(SteppedMethod):
    """Federated averaging with Adam at the server (Reddi et al. 2021), for point weights.

    Parameters
    ----------
    server_lr : float
        η, the server's step size.
    beta1, beta2 : float
        Decay a round of the mean of the steps (beta1) and of their squares' mean (beta2).
    tau : float
        τ, in units of a weight's step; with a smaller τ more steps are scaled to one size.
    """

    server_lr: Positive = 0.01
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.99
    tau: Positive = 0.001

    @property
    def optimiser(self) -> ServerAdam:
        """Return Adam."""
        return ServerAdam(self.server_lr, self.beta1, self.beta2, self.tau)
