"""Hostile clients, for experiments: what they send in place of the posterior they fitted.

An attack is a function of the posterior that the client received, of tensors m, log v, and of the
one it fitted to its data, m_k, log v_k. Tensors that are not floating are sent as fitted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from fedbary.seeds import derive_seed

if TYPE_CHECKING:
    from fedbary.gaussian import Posterior

SCALE = 10.0
"""By how much `scaling` multiplies an update."""

COLLAPSED_LOG_VAR = -30.0
"""The log-variance that `variance_collapse` sends: a standard deviation of 3e-7."""


def sign_flip(received: Posterior, fitted: Posterior) -> Posterior:
    """Send the update of the means with its sign flipped: m − (m_k − m), log v_k."""
    return _moved(received, fitted, -1.0)


def scaling(received: Posterior, fitted: Posterior) -> Posterior:
    """Send the update of the means ten times as large: m + 10 (m_k − m), log v_k.

    One of ten equal clients under a plain mean replaces the global means by its own
    (Bagdasaryan et al., How To Backdoor Federated Learning, 2020, eq. 3); several overshoot.
    """
    return _moved(received, fitted, SCALE)


def variance_collapse(received: Posterior, fitted: Posterior) -> Posterior:
    """Send the flipped update of the means with tiny variances: m − (m_k − m), −30.

    The attack peculiar to posteriors: in the reverse-KL barycentre a client's say is w/v, and one
    such client owns it. Deterministic tensors are those of `sign_flip`.
    """
    flipped = sign_flip(received, fitted)
    log_var = {name: v.new_full(v.shape, COLLAPSED_LOG_VAR) for name, v in fitted.log_var.items()}
    return replace(flipped, log_var=log_var)


ATTACKS: Mapping[str, Callable[[Posterior, Posterior], Posterior]] = MappingProxyType(
    {attack.__name__: attack for attack in (sign_flip, scaling, variance_collapse)}
)
"""Every attack by its name."""


def hostile_clients(fraction: float, clients: int, seed: int) -> frozenset[int]:
    """Return which of so many clients are hostile: ``round(fraction · clients)`` by the seed."""
    rng = np.random.default_rng(derive_seed(seed, "hostile"))
    return frozenset(rng.permutation(clients)[: round(fraction * clients)].tolist())


def _moved(received: Posterior, fitted: Posterior, factor: float) -> Posterior:
    """Return the fitted posterior with means m + factor · (m_k − m)."""
    mean = {
        name: received.mean[name] + factor * (new - received.mean[name])
        if new.is_floating_point()
        else new
        for name, new in fitted.mean.items()
    }
    return replace(fitted, mean=mean)
