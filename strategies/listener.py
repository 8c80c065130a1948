"""Who hears what admitted replies hold beside their arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from flwr.app import RecordDict


class Listener(Protocol):
    """Hears the replies of each round whose metrics are sound, by node; content sets their order.

    It hears nothing of a skipped round.
    """

    def trained(self, replies: Mapping[int, RecordDict]) -> None:
        """Hear the training replies."""

    def evaluated(self, replies: Mapping[int, RecordDict]) -> None:
        """Hear the evaluation replies."""
