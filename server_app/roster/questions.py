"""Open questions: nodes that were asked for their data and have not answered yet."""

from __future__ import annotations

import time
from collections.abc import Iterable

AGAIN_SECONDS = 60.0
"""Seconds until a question is asked a second time; a third time after twice as long, and so on.

A question is lost if a node's client process dies, or takes longer to start than Flower allows. The
time grows with each repetition, so that questions to slow nodes do not pile up.
"""


class Questions:
    """The questions that are open; any answer of a node closes all of its own."""

    def __init__(self) -> None:
        self._node: dict[str, int] = {}
        self._asked: dict[int, dict[str, float]] = {}

    @property
    def ids(self) -> list[str]:
        """The open questions, by the ids of their messages."""
        return list(self._node)

    @property
    def waited_for(self) -> set[int]:
        """The nodes that have not answered."""
        return set(self._asked)

    def due(self, nodes: Iterable[int]) -> list[int]:
        """Return the nodes to ask now: for the first time, or again."""
        return sorted(node for node in set(nodes) if self._is_due(node))

    def asked(self, ids: Iterable[str | None], nodes: Iterable[int]) -> None:
        """Note the message to each node; one without an id was not sent."""
        for message_id, node in zip(ids, nodes, strict=True):
            if message_id:
                self._node[message_id] = node
                self._asked.setdefault(node, {})[message_id] = time.monotonic()

    def answered(self, message_id: str) -> int | None:
        """Close a node's questions; return the node, or None if none of its own is open."""
        node = self._node.get(message_id)
        if node is not None:
            for closed in self._asked.pop(node):
                self._node.pop(closed, None)
        return node

    def _is_due(self, node: int) -> bool:
        times = list(self._asked.get(node, {}).values())
        waits = AGAIN_SECONDS * 2 ** (len(times) - 1) if times else 0.0
        return not times or time.monotonic() >= times[-1] + waits
