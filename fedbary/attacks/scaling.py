"""The update ten times as large, m + 10 (m_k − m), and log v_k.

One of ten equal clients under a plain mean replaces the global means by its own (Bagdasaryan et
al., How To Backdoor Federated Learning, 2020, eq. 3); several overshoot.
"""

from __future__ import annotations

from torch import Tensor

from fedbary.attacks._hostile import Hostile
from fedbary.attacks._moves import NamedTensors, moved

SCALE = 10.0
"""Factor of an update."""

Parameters = Hostile


def sent(received: NamedTensors, fitted: NamedTensors, parameters: Hostile) -> dict[str, Tensor]:
    """Send the update ten times as large."""
    return moved(received, fitted, SCALE)
