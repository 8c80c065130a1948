"""FedAvgM: the server follows the clients' mean step with momentum.

Clients begin at θ, and their mean, weighed by size, is θ̄:

    u ← β u + (θ − θ̄),      θ ← θ − η u.

η = 1 and β = 0 is FedAvg. Momentum steadies a federation if clients differ, or if few take part in
a round. It multiplies the clients' progress by up to η/(1 − β), so a large β asks for a small η or
small local rates. Buffers are averaged, without momentum.

For a posterior, `server_momentum` does the same for the means, beside any rule.

It assumes a common optimum, and point weights; the prediction is a point.

Messages: the model once each way, as under FedAvg. Clients keep nothing.

Cost: local steps cost FedAvg's; the server keeps u, 1 number per weight.

Use it where FedAvg is unsteady: if clients differ, or few of many take part in a round.

Reference: Hsu, Qi and Brown, Measuring the Effects of Non-Identical Data Distribution for Federated
Visual Classification, 2019; their β is 0.9, η = 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedbary.methods._server_steps import ServerSGD, SteppedMethod
from fedbary.parts.parameters import BelowOne, Positive


@dataclass(frozen=True)
class FedAvgM(SteppedMethod):
    """Federated averaging with momentum of the server (Hsu et al. 2019), for point weights.

    Parameters
    ----------
    server_lr : float
        η, the server's step size along the momentum.
    server_momentum : float
        β, the part of the momentum that a round keeps.
    """

    server_lr: Positive = 1.0
    server_momentum: BelowOne = 0.9

    @property
    def optimiser(self) -> ServerSGD:
        """Return SGD with momentum."""
        return ServerSGD(self.server_lr, self.server_momentum)
