"""Federated expectation propagation: one site per client; the server steps along their changes.

With natural parameters η = (m/v, 1/v), sites λ_k, C replies in a round and n_k examples at a
client,

    cavity:   π_k = η_g − λ_k,
    tilted:   q_k ≈ π_k · N(0, κ/(c n_k)) · p(D_k | θ)^(1/κ),
    server:   u_k ← β u_k + (s/C) (η(q_k) − η_g),      λ_k ← λ_k + u_k,      η_g = Σ_k λ_k,

with κ the run's kl_weight. The prior is in the likelihoods: c is the weight decay of each, and the
whole prior's precision is c n/κ. The first rounds begin with a flat cavity. If Gaussians factorise,
η_g at a fixed point is the mean-field posterior of all data, exact for linear models. This is PVI's
recursion (see `PVI`) with momentum, and with the prior divided among the clients.

The run's local inference finds the tilted distribution: natural_gradient is closest to the paper's
NGVI.

It assumes that posteriors factorise, and that clients come back. Deterministic tensors are averaged
by size.

Messages: down the global posterior and the client's cavity (4 numbers per Gaussian weight); up its
posterior (2). Clients keep nothing.

Cost: local steps cost what plain variational inference costs. The sites and their momentum lie at
the server, 4 numbers per weight and client.

Use it with tens of clients, where PVI is slow; `FedSEP` holds no site of a client.

Reference: Guo et al., Federated Learning as Variational Inference: A Scalable Expectation
Propagation Approach, ICLR 2023. Its code is HanGuo97/expectation-propagation. There the mean is the
average of SGD's iterates, and the precision is found separately, for example by a Laplace
approximation. Each likelihood counts 500 times (κ = 0.002 here). It starts at a checkpoint of
FedAvg. The sum has momentum at the server, and each site at its client. So Σ λ_k differs from η_g
if some clients are away. Here only the sites have momentum, and the two are equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from fedbary.gaussian import Factor
from fedbary.inference._steps import effective_size
from fedbary.methods._method import Fitted, Local, Tensors
from fedbary.methods._sites import ServerFactorMethod, factor
from fedbary.parts.parameters import BelowOne, NotNegative, Share


@dataclass(frozen=True)
class FedEP(ServerFactorMethod):
    """Federated expectation propagation (Guo et al. 2023).

    Parameters
    ----------
    server_lr : float
        s, the part of the way that the sites of a round move together.
    server_momentum : float
        β, the part of the momentum that a round keeps.
    weight_decay : float
        c, the weight decay beside a client's mean negative log-likelihood; the paper's value for
        CIFAR-100.
    """

    server_lr: Share = 0.5
    server_momentum: BelowOne = 0.9
    weight_decay: NotNegative = 1e-4

    @property
    def site_momentum(self) -> float:
        """β."""
        return self.server_momentum

    def prior(self, like: Mapping[str, Tensor]) -> Factor:
        """Return 1: the prior is in the likelihoods."""
        return Factor.normal(1.0, like) ** 0.0

    def step(self, replies: int) -> float:
        """Return s/C."""
        return self.server_lr / replies

    def fit(self, local: Local, received: Tensors, kept: Tensors) -> Fitted:
        """Infer the tilted distribution from the cavity and the client's part of the prior."""
        local.load(received)
        cavity = self.cavity(received, len(local.y))
        decay = self.weight_decay * effective_size(local.training, len(local.y))
        return self.inferred(local, cavity * Factor.normal(1.0, cavity.precision) ** decay)

    def cavity(self, received: Tensors, examples: int) -> Factor:
        """Return the global factor without a client that holds so many examples."""
        return factor("cavity", received)
