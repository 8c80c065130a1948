"""BayesADMM: the alternating direction method of multipliers between Gaussian posteriors.

With natural parameters η = (m/v, 1/v), prior η₀, dual variables (sites) λ_k, K clients and κ the
run's kl_weight, the paper's temperature τ,

    client:  q_k = argmin_q E_q[NLL_k] + κ ρ KL(q ‖ η_g − λ_k/ρ),
    server:  λ_k ← λ_k + γ ρ (η(q_k) − η_g),
             η_g ← (1 − α) mean_k η(q_k) + α (η₀ + Σ_k λ_k),      α = 1/(1 + ρ K).

If all variances are equal and fixed, it is ADMM on the means. With ρ = 1, γ = 1/K and all clients
in every round it is PVI with that damping. So the defaults of both methods agree for ten clients. A
fixed point has q_k = η_g for every client. It is the mean-field posterior of all data, with the
likelihood to the power 1/κ. For linear models that is exact, also with correlated features, unlike
sizes, and clients that leave and return. Convergence to it depends on γ. All of our linear problems
reached it with ρ = 1, fastest at γ = 0.1. Small ρ with γ = 1 diverged.

It assumes that posteriors factorise, and that clients come back: K counts those that have ever
replied. Deterministic tensors are averaged by size.

Messages: down the global posterior and the client's cavity (4 numbers per Gaussian weight); up its
posterior (2). Clients keep nothing.

Cost: local steps cost what plain variational inference costs. The sites lie at the server, 2
numbers per weight and client.

Use it where PVI's damping of 1/K is too slow. Without rounds take PVI: old posteriors of slow
clients hold this method's mean back.

The defaults are the authors' on CIFAR-10, where kl_weight is 0.1 and prior_std 1.4. On
Fashion-MNIST they take ρ = 0.2 and γ = kl_weight = 0.001. A γ this small needs a kl_weight this
small. Otherwise sites hardly move, and the prior draws the mean to 0 by α per round.

Reference: the IVON-ADMM of Möllenhoff, Swaroop, Doshi-Velez and Khan, Federated ADMM from Bayesian
Duality, ICLR 2026 (arXiv 2506.13150), with their public code team-approx-bayes/bayes-admm. That
code trains by IVON (inference=ivon here) and begins every local fit at the global precision. It
holds the duals at the clients, with the opposite sign, and needs every client in every round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from fedbary.gaussian import Factor
from fedbary.methods._sites import ServerFactorMethod
from fedbary.parts.parameters import Positive, Share


@dataclass(frozen=True)
class BayesADMM(ServerFactorMethod):
    """Bayesian ADMM: sites as dual variables, the server between their product and the mean.

    Parameters
    ----------
    rho : float
        ρ, the strength that holds clients together; below 1 they go further in a round.
    damping : float
        γ, the part of the way that a dual variable moves.
    prior_std : float
        Standard deviation of the prior N(0, prior_std²), η₀.
    """

    rho: Positive = 1.0
    damping: Share = 0.1
    prior_std: Positive = 1.0

    def prior(self, like: Mapping[str, Tensor]) -> Factor:
        """Return N(0, prior_std²)."""
        return Factor.normal(self.prior_std, like)

    def step(self, replies: int) -> float:
        """Return γ ρ."""
        return self.damping * self.rho

    def mixing(self, clients: int) -> float:
        """Return α = 1/(1 + ρ K)."""
        return 1 / (1 + self.rho * clients)
