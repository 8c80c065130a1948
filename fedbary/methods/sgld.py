"""Federated SGLD: SGHMC at friction 1, without a velocity.

A step is θ ← θ − η ∇U_k / n_k + √(2 η T / n_k) z: Langevin's at the step h = η/n_k, with U_k the
client's negative log posterior. All else is as SGHMC's module says. Batches of B examples make it a
chain at the temperature T + η h n_k/(2B), h being the curvature of the mean NLL. So η is set by h,
as SGHMC's. Without a velocity s is at most 0.1, where SGHMC at friction 0.1 has 1.

It assumes what SGHMC assumes.

Messages: 1 model down, M up. Clients keep nothing.

Cost: as SGHMC.

Use it to compare with papers that sample by SGLD; SGHMC moves farther in as many steps.

Traps of public code (FedPPD's): (2 √η / n_k) z in place of √(2h) z is a temperature of 4/n_k at the
step η/2, so that hardly any noise is left.

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
