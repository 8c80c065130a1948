"""The update with its sign flipped, m − (m_k − m), and log v_k."""

from __future__ import annotations

from torch import Tensor

from fedbary.attacks._hostile import Hostile
from fedbary.attacks._moves import NamedTensors, moved

Parameters = Hostile


def sent(received: NamedTensors, fitted: NamedTensors, parameters: Hostile) -> dict[str, Tensor]:
    """Send the update with its sign flipped."""
    return moved(received, fitted, -1.0)
