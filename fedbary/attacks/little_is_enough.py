"""The honest clients' mean less z standard deviations of each coordinate, and log v_k.

Enough honest clients lie farther out that the hostile ones seem to be of the majority. See
`deviations` (Baruch, Baruch and Goldberg, A Little Is Enough, NeurIPS 2019, algorithm 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

from torch import Tensor

from fedbary.attacks._hostile import Hostile
from fedbary.attacks._moves import NamedTensors, replaced

Parameters = Hostile


def sent_by_all(
    received: NamedTensors,
    fitted: NamedTensors,
    honest: Sequence[NamedTensors],
    hostile: int,
    parameters: Hostile,
) -> dict[str, Tensor]:
    """Send the honest clients' mean less z standard deviations."""
    z = deviations(len(honest) + hostile, hostile) if honest else 0.0

    def moved(name: str, others: Tensor) -> Tensor:
        return others.mean(0) - z * others.std(0, correction=0)

    return replaced(fitted, honest, moved)


def deviations(clients: int, hostile: int) -> float:
    """Return how many standard deviations the means go, z of Baruch et al., algorithm 3.

    With s = ⌊K/2 + 1⌋ − h, the supporters that h hostile ones of K clients need for a majority, at
    least 1, z = Φ⁻¹((K − h − s)/(K − h)); 0 where s is half of the honest ones or more.
    """
    honest = clients - hostile
    supporters = max(1, clients // 2 + 1 - hostile)
    nearer = (honest - supporters) / honest
    return NormalDist().inv_cdf(nearer) if nearer > 0.5 else 0.0
