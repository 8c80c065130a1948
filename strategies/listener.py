"""Listener to the content of admitted replies beside their arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from flwr.app import RecordDict

from fedbary.methods import Tensors


class Listener(Protocol):
    """Is given the training messages, and by node the replies with sound metrics.

    The replies' content sets their order. Training replies of a skipped round are not given.
    """

    def asked(self, contents: Sequence[RecordDict]) -> None:
        """Take the training messages of a round."""

    def trained(self, replies: Mapping[int, RecordDict], tensors: Sequence[Tensors]) -> None:
        """Take the training replies, with their arrays in fedbary's names and unit."""

    def evaluated(self, replies: Mapping[int, RecordDict]) -> None:
        """Take the evaluation replies."""
