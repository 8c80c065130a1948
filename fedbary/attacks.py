"""Hostile clients, for experiments: what they send in place of the reply that they fitted.

An attack of `ATTACKS` is a function of the tensors that a client received and of those that it
would reply with. With m a received tensor, 0 where the client received none of that name
(a method whose clients send changes), and m_k the fitted one, it moves m_k along m_k − m.

One of `OMNISCIENT` also sees what the honest clients of the round reply, and all hostile ones send
the same means. Their log-variances stay those that each has fitted: the attacks are published for
point weights, and what gives a posterior away is left as honest clients have it.

Tensors that are not floating are sent as fitted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import NormalDist
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from fedbary.errors import SettingError
from fedbary.seeds import derive_seed

if TYPE_CHECKING:
    from torch import Tensor

    Tensors = Mapping[str, Tensor]

SCALE = 10.0
"""By how much `scaling` multiplies an update."""

COLLAPSED_LOG_VAR = -30.0
"""The log-variance that `variance_collapse` sends: a standard deviation of 3e-7."""

EXPLODED_LOG_VAR = 10.0
"""The log-variance that `variance_explosion` sends: a standard deviation of 148."""

EPSILON = 1.0
"""By how much `inner_product` multiplies the honest clients' mean update, against its sign."""


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
    return _flipped(received, fitted, COLLAPSED_LOG_VAR)


def variance_explosion(received: Tensors, fitted: Tensors) -> dict[str, Tensor]:
    """Send the flipped update with huge variances: m − (m_k − m), 10.

    In the Wasserstein-2 barycentre a standard deviation is a mean of the clients', and one such
    client makes all of them large. Of what has no log-variance it is `sign_flip`.
    """
    return _flipped(received, fitted, EXPLODED_LOG_VAR)


def inner_product(
    received: Tensors, fitted: Tensors, honest: Sequence[Tensors], hostile: int
) -> dict[str, Tensor]:
    """Send the honest clients' mean update against its sign, m − ε mean_k(m_k − m), and log v_k.

    The inner product with what honest clients agree on is negative, and no update is larger
    (Xie, Koyejo and Gupta, Fall of Empires, UAI 2019, eq. 2).
    """

    def moved(name: str, others: Tensor) -> Tensor:
        old = received[name].to(others) if name in received else others.new_zeros(())
        return old - EPSILON * (others.mean(0) - old)

    return _replaced(fitted, honest, moved)


def little_is_enough(
    received: Tensors, fitted: Tensors, honest: Sequence[Tensors], hostile: int
) -> dict[str, Tensor]:
    """Send the honest clients' mean less z standard deviations of each coordinate, and log v_k.

    So many honest clients lie farther out that the hostile ones seem to be of the majority; see
    `deviations` (Baruch, Baruch and Goldberg, A Little Is Enough, NeurIPS 2019, algorithm 3).
    """
    z = deviations(len(honest) + hostile, hostile) if honest else 0.0

    def moved(name: str, others: Tensor) -> Tensor:
        return others.mean(0) - z * others.std(0, correction=0)

    return _replaced(fitted, honest, moved)


def deviations(clients: int, hostile: int) -> float:
    """Return how many standard deviations `little_is_enough` goes, z of Baruch et al., algorithm 3.

    With s = ⌊K/2 + 1⌋ − h, the supporters that h hostile ones of K clients need for a majority, at
    least 1, z = Φ⁻¹((K − h − s)/(K − h)); 0 where s is half of the honest ones or more.
    """
    honest = clients - hostile
    supporters = max(1, clients // 2 + 1 - hostile)
    nearer = (honest - supporters) / honest
    return NormalDist().inv_cdf(nearer) if nearer > 0.5 else 0.0


ATTACKS: Mapping[str, Callable[[Tensors, Tensors], dict[str, Tensor]]] = MappingProxyType(
    {
        attack.__name__: attack
        for attack in (sign_flip, scaling, variance_collapse, variance_explosion)
    }
)
"""Every attack of a client alone, by its name."""

OMNISCIENT: Mapping[
    str, Callable[[Tensors, Tensors, Sequence[Tensors], int], dict[str, Tensor]]
] = MappingProxyType({attack.__name__: attack for attack in (inner_product, little_is_enough)})
"""Every attack that sees the honest replies, and how many are hostile, by its name."""


def require_simulation(attack: str) -> None:
    """Raise a SettingError if an attack needs what only the server of a simulation sees."""
    if attack in OMNISCIENT:
        allowed = f"none, {', '.join(ATTACKS)}: on a deployment no client sees honest replies"
        raise SettingError("attack", attack, allowed)


def hostile_count(fraction: float, clients: int) -> int:
    """Return how many of so many clients are hostile: ``round(fraction · clients)``."""
    return round(fraction * clients)


def hostile_clients(fraction: float, clients: int, seed: int) -> frozenset[int]:
    """Return which of so many clients are hostile, `hostile_count` by the seed."""
    rng = np.random.default_rng(derive_seed(seed, "hostile"))
    return frozenset(rng.permutation(clients)[: hostile_count(fraction, clients)].tolist())


def _moved(received: Tensors, fitted: Tensors, factor: float) -> dict[str, Tensor]:
    """Return the reply with all but its scales at m + factor · (m_k − m)."""
    scales = _scales(fitted)

    def moved(name: str, new: Tensor) -> Tensor:
        if name in scales or not new.is_floating_point():
            return new
        old = received[name].to(new) if name in received else new.new_zeros(())
        return old + factor * (new - old)

    return {name: moved(name, new) for name, new in fitted.items()}


def _replaced(
    fitted: Tensors, honest: Sequence[Tensors], moved: Callable[[str, Tensor], Tensor]
) -> dict[str, Tensor]:
    """Return the reply with what the honest clients have too, scales apart, replaced.

    `moved` is given a name and the honest clients' tensors, [clients, *shape], in float64. What no
    honest client has in that shape is sent as fitted.
    """
    import torch

    scales = _scales(fitted)
    sent = dict(fitted)
    for name, new in fitted.items():
        others = [o[name] for o in honest if name in o and o[name].shape == new.shape]
        if others and name not in scales and new.is_floating_point():
            sent[name] = moved(name, torch.stack(others).double()).to(new)
    return sent


def _flipped(received: Tensors, fitted: Tensors, log_var: float) -> dict[str, Tensor]:
    """Return the reply with its update's sign flipped and this log-variance everywhere."""
    flat = {name: fitted[name].new_full(fitted[name].shape, log_var) for name in _scales(fitted)}
    return sign_flip(received, fitted) | flat


def _scales(fitted: Tensors) -> set[str]:
    """Return the names of the log-variances. Settings know attacks, but need no PyTorch."""
    from fedbary.gaussian import gaussian_pairs

    return set(gaussian_pairs(fitted).values())
