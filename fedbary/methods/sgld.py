"""Federated SGLD: SGHMC at friction 1, without a velocity.

A step is θ ← θ − η ∇U_k / n_k + √(2 η T / n_k) z: Langevin's at the step h = η/n_k, with U_k the
client's negative log posterior. All else is as SGHMC's module says. A step has no momentum
to multiply it: η is 3 `lr` by default, where SGHMC at friction 0.1 goes 10 `lr` far.

It assumes what SGHMC assumes, and steps small enough for Langevin dynamics without a velocity.

What travels: 1 model down, M up. Clients keep nothing.

What it costs: a step costs what one of SGD does and a draw of d numbers. The server holds K · M
networks.

Use it to compare with papers that sample by SGLD; SGHMC moves farther in as many steps.

Traps of public code (FedPPD's): (2 √η / n_k) z in place of √(2h) z is a temperature of 4/n_k at the
step η/2, so that hardly any noise is left.

Reference: Welling and Teh, Bayesian Learning via Stochastic Gradient Langevin Dynamics, ICML 2011.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedbary.methods.sghmc import SGHMC


@dataclass(frozen=True)
class SGLD(SGHMC):
    """Samples of the clients' posteriors by SGLD (Welling and Teh 2011), for point weights."""

    friction: float = 1.0
    rate_factor: float = 3.0
