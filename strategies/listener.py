"""Who hears what admitted replies hold beside their arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from flwr.app import RecordDict

from fedbary.methods import Tensors


class Listener(Protocol):
    """Hears what clients are sent to train, and by node the replies whose metrics are sound.

    The replies' content sets their order. Of a skipped round it hears no training reply.
    """

    def asked(self, contents: Sequence[RecordDict]) -> None:
        """Hear what the clients of a round are sent to train."""

    def trained(self, replies: Mapping[int, RecordDict], tensors: Sequence[Tensors]) -> None:
        """Hear the training replies, with their arrays in fedbary's names and unit."""

    def evaluated(self, replies: Mapping[int, RecordDict]) -> None:
        """Hear the evaluation replies."""
