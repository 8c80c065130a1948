"""The flipped update with tiny variances: m − (m_k − m), −30.

The attack peculiar to posteriors: in the reverse-KL barycentre a client's say is w/v, and one such
client owns it. Tensors without a log-variance get `sign_flip`.
"""

from __future__ import annotations

from torch import Tensor

from fedbary.attacks._hostile import Hostile
from fedbary.attacks._moves import NamedTensors, flipped

COLLAPSED_LOG_VAR = -30.0
"""A standard deviation of 3e-7."""

Parameters = Hostile


def sent(received: NamedTensors, fitted: NamedTensors, parameters: Hostile) -> dict[str, Tensor]:
    """Send the flipped update with tiny variances."""
    return flipped(received, fitted, COLLAPSED_LOG_VAR)
