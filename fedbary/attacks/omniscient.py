"""Attacks that see what all honest clients of the round reply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

from fedbary.attacks import OmniscientAttack, Tensors
from fedbary.gaussian import gaussian_pairs


@dataclass(frozen=True)
class InnerProduct(OmniscientAttack):
    """The honest clients' mean update against its sign, m − mean_k(m_k − m), and log v_k.

    The inner product with what honest clients agree on is negative, and no update is larger (Xie,
    Koyejo and Gupta, Fall of Empires, UAI 2019, eq. 2, with ε = 1).
    """

    def sent(
        self, received: Tensors, fitted: Tensors, honest: Sequence[Tensors], hostile: int
    ) -> dict[str, Tensor]:
        """Send the honest clients' mean update against its sign."""
        return _replaced(received, fitted, honest, lambda old, others: old - (others.mean(0) - old))


@dataclass(frozen=True)
class LittleIsEnough(OmniscientAttack):
    """The honest clients' mean less z standard deviations of each coordinate, and log v_k.

    Enough honest clients lie farther out that the hostile ones seem to be of the majority. See
    `deviations` (Baruch, Baruch and Goldberg, A Little Is Enough, NeurIPS 2019, algorithm 3).
    """

    def sent(
        self, received: Tensors, fitted: Tensors, honest: Sequence[Tensors], hostile: int
    ) -> dict[str, Tensor]:
        """Send the honest clients' mean less z standard deviations."""
        z = deviations(len(honest) + hostile, hostile) if honest else 0.0
        return _replaced(
            received, fitted, honest,
            lambda old, others: others.mean(0) - z * others.std(0, correction=0),
        )  # fmt: skip


def deviations(clients: int, hostile: int) -> float:
    """Return how many standard deviations the means go, z of Baruch et al., algorithm 3.

    With s = ⌊K/2 + 1⌋ − h, the supporters that h hostile ones of K clients need for a majority, at
    least 1, z = Φ⁻¹((K − h − s)/(K − h)); 0 where s is half of the honest ones or more.
    """
    honest = clients - hostile
    supporters = max(1, clients // 2 + 1 - hostile)
    nearer = (honest - supporters) / honest
    return NormalDist().inv_cdf(nearer) if nearer > 0.5 else 0.0


def _replaced(
    received: Tensors,
    fitted: Tensors,
    honest: Sequence[Tensors],
    by: Callable[[Tensor, Tensor], Tensor],
) -> dict[str, Tensor]:
    """Return the reply with what the honest clients have too, scales apart, replaced.

    `by` is given the received tensor and the honest clients', [clients, *shape], in float64.
    Tensors that no honest client has in that shape are sent as fitted.
    """
    scales = set(gaussian_pairs(fitted).values())
    sent = dict(fitted)
    for name, new in fitted.items():
        alike = [o[name] for o in honest if name in o and o[name].shape == new.shape]
        if alike and name not in scales and new.is_floating_point():
            others = torch.stack(alike).double()
            old = received[name].to(others) if name in received else others.new_zeros(())
            sent[name] = by(old, others).to(new)
    return sent
