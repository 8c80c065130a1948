"""FedProx: clients are held to the global model by a quadratic term.

A client minimises

    mean NLL_k(θ) + ½ μ ‖θ − θ_g‖²

from θ_g. (It is the square of the norm, not the norm.) The server averages by size. The term is the
prior N(θ_g, 1/(n_k μ)) per weight. If clients' data differ, it keeps them from drifting apart in
many local steps. It also makes steps smaller: μ = 0 is FedAvg, and with a large μ nothing moves.

It assumes that a good common model lies near the global one, and point weights; the prediction is a
point.

Messages: the model once each way, as under FedAvg. Clients and server keep nothing.

Cost: local steps cost what FedAvg's cost: the term is two vectors in SGD's update.

Use it where federated averaging is unsteady; for a prior that counts once see PVI.

Reference: Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, which tries
μ in {0.001, 0.01, 0.1, 1} for each data set and drops no slow clients. Public code of several
later papers has the norm unsquared.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedbary.methods._method import Fitted, Local, Method, Tensors
from fedbary.parts.parameters import NotNegative


@dataclass(frozen=True)
class FedProx(Method):
    """Federated averaging with a proximal term (Li et al. 2020), for point weights.

    Parameters
    ----------
    mu : float
        μ, the weight of the pull, per example, beside the mean negative log-likelihood.
    """

    mu: NotNegative = 0.01

    deterministic = True

    def fit(self, local: Local, received: Tensors, kept: Tensors) -> Fitted:
        """Train from the global model, held to it."""
        training = replace(local.training, proximity=self.mu)
        return super().fit(replace(local, training=training), received, kept)
