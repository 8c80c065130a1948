"""Hostile clients, for experiments: what they send in place of the reply that they fitted.

An attack is a function of the tensors that a client received and of those that it would reply with.
With m a received tensor, 0 where the client received none of that name
(a method whose clients send changes), and m_k the fitted one, it moves m_k along m_k − m.
Tensors that are not floating are sent as fitted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from fedbary.seeds import derive_seed

if TYPE_CHECKING:
    from torch import Tensor

    Tensors = Mapping[str, Tensor]

SCALE = 10.0
"""By how much `scaling` multiplies an update."""

COLLAPSED_LOG_VAR = -30.0
"""The log-variance that `variance_collapse` sends: a standard deviation of 3e-7."""


def sign_flip(received: Tensors, fitted: Tensors) -> dict[str, Tensor]:
    """Send the update with its sign flipped, m − (m_k − m), and log v_k."""
    return _moved(received, fitted, -1.0)


def scaling(received: Tensors, fitted: Tensors) -> dict[str, Tensor]:
    """Send the update ten times as large, m + 10 (m_k − m), and log v_k.

    One of ten equal clients under a plain mean replaces the global means by its own
    (Bagdasaryan et al., How To Backdoor Federated Learning, 2020, eq. 3); several overshoot.
    """
    return _moved(received, fitted, SCALE)


def variance_collapse(received: Tensors, fitted: Tensors) -> dict[str, Tensor]:
    """Send the flipped update with tiny variances: m − (m_k − m), −30.

    The attack peculiar to posteriors: in the reverse-KL barycentre a client's say is w/v, and one
    such client owns it. Of what has no log-variance it is `sign_flip`.
    """
    scales = {name: fitted[name] for name in _scales(fitted)}
    collapsed = {name: v.new_full(v.shape, COLLAPSED_LOG_VAR) for name, v in scales.items()}
    return sign_flip(received, fitted) | collapsed


ATTACKS: Mapping[str, Callable[[Tensors, Tensors], dict[str, Tensor]]] = MappingProxyType(
    {attack.__name__: attack for attack in (sign_flip, scaling, variance_collapse)}
)
"""Every attack by its name."""


def hostile_clients(fraction: float, clients: int, seed: int) -> frozenset[int]:
    """Return which of so many clients are hostile: ``round(fraction · clients)`` by the seed."""
    rng = np.random.default_rng(derive_seed(seed, "hostile"))
    return frozenset(rng.permutation(clients)[: round(fraction * clients)].tolist())


def _moved(received: Tensors, fitted: Tensors, factor: float) -> dict[str, Tensor]:
    """Return the reply with all but its scales at m + factor · (m_k − m)."""
    scales = _scales(fitted)

    def moved(name: str, new: Tensor) -> Tensor:
        if name in scales or not new.is_floating_point():
            return new
        old = received[name].to(new) if name in received else new.new_zeros(())
        return old + factor * (new - old)

    return {name: moved(name, new) for name, new in fitted.items()}


def _scales(fitted: Tensors) -> set[str]:
    """Return the names of the log-variances. Settings know attacks, but need no PyTorch."""
    from fedbary.gaussian import gaussian_pairs

    return set(gaussian_pairs(fitted).values())
