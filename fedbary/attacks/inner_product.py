"""The honest clients' mean update against its sign, m − ε mean_k(m_k − m), and log v_k.

The inner product with what honest clients agree on is negative, and no update is larger (Xie,
Koyejo and Gupta, Fall of Empires, UAI 2019, eq. 2).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fedbary.attacks._hostile import Hostile
from fedbary.attacks._moves import NamedTensors, replaced

EPSILON = 1.0
"""Factor of the honest clients' mean update, against its sign."""

Parameters = Hostile


def sent_by_all(
    received: NamedTensors,
    fitted: NamedTensors,
    honest: Sequence[NamedTensors],
    hostile: int,
    parameters: Hostile,
) -> dict[str, Tensor]:
    """Send the honest clients' mean update against its sign."""

    def moved(name: str, others: Tensor) -> Tensor:
        old = received[name].to(others) if name in received else others.new_zeros(())
        return old - EPSILON * (others.mean(0) - old)

    return replaced(fitted, honest, moved)
