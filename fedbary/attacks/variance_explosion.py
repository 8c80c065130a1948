"""The flipped update with huge variances: m − (m_k − m), 10.

In the Wasserstein-2 barycentre a standard deviation is a mean of the clients', and one such client
makes all of them large. Tensors without a log-variance get `sign_flip`.
"""

from __future__ import annotations

from torch import Tensor

from fedbary.attacks._hostile import Hostile
from fedbary.attacks._moves import NamedTensors, flipped

EXPLODED_LOG_VAR = 10.0
"""A standard deviation of 148."""

Parameters = Hostile


def sent(received: NamedTensors, fitted: NamedTensors, parameters: Hostile) -> dict[str, Tensor]:
    """Send the flipped update with huge variances."""
    return flipped(received, fitted, EXPLODED_LOG_VAR)
