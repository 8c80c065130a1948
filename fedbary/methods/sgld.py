"""Federated SGLD: SGHMC at friction 1, without a velocity.

A step is θ ← θ − η ∇U_k / n_k + √(2 η T / n_k) z, Langevin's with the step η/n_k. U_k is the
client's negative log posterior. All else is as in `SGHMC`. With batches of B examples the chain's
temperature is T + η h n_k/(2B), with h the curvature of the mean NLL. So η is set by h, as in
SGHMC. Without a velocity s is at most 0.1; SGHMC at friction 0.1 has 1.

It assumes what SGHMC assumes.

Messages: 1 model down, M up. Clients keep nothing.

Cost: that of SGHMC.

Use it to compare with papers that sample by SGLD; SGHMC moves farther in as many steps.

Trap of public code (FedPPD's): its noise (2 √η / n_k) z at the step η/2 has the temperature 4/n_k,
so hardly any noise is left.

Reference: Welling and Teh, Bayesian Learning via Stochastic Gradient Langevin Dynamics, ICML 2011.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedbary.methods.sghmc import SGHMC
from fedbary.parts.parameters import Share


@dataclass(frozen=True)
class SGLD(SGHMC):
    """Samples of the clients' posteriors by SGLD (Welling and Teh 2011), for point weights."""

    friction: Share = 1.0
