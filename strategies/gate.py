"""Who is let in: the refusals of a strategy's rounds, each said and kept with its client's name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from logging import WARNING

from flwr.app import Message
from flwr.supercore import log

from fedbary.texts import shown

PARTITION_KEY = "partition-id"
"""The metric by which a reply may tell which partition of the data it comes from."""

MOST_AT_ONCE = 100
"""The most refusals of a phase of a round that are said and kept one by one."""

MOST_KEPT = 10_000
"""The most refusals that are kept over all rounds, the latest."""


@dataclass(frozen=True)
class Refusal:
    """A reply that was left out.

    Parameters
    ----------
    round : int
        The server round it was for.
    node_id : int
        The node it came from, as Flower numbers it.
    reason : str
        One line that names the client and says what is wrong.
    """

    round: int
    node_id: int
    reason: str


class Gate:
    """Tells replies' clients apart, and says and keeps why replies were refused.

    Parameters
    ----------
    name_node : callable, optional
        From a node's id, what its site is called; None where that is not known.

    Attributes
    ----------
    refusals : list of Refusal
        The latest refusals over all rounds, at most `MOST_KEPT`.
    """

    def __init__(self, name_node: Callable[[int], str | None] | None = None) -> None:
        self._name_node = name_node
        self.refusals: list[Refusal] = []
        self._asked: list[Message] = []

    def ask(self, messages: Iterable[Message]) -> None:
        """Remember whom replies are awaited from: an error that Flower itself sends is node 1's."""
        self._asked = list(messages)

    def admitted(
        self, server_round: int, replies: Sequence[Message], reasons: Sequence[str | None]
    ) -> list[Message]:
        """Return the replies without a reason to refuse them; say and keep those of the others."""
        self.refusals += self.said(server_round, "reply refused", replies, reasons)
        del self.refusals[:-MOST_KEPT]
        return [reply for reply, reason in zip(replies, reasons, strict=True) if reason is None]

    def said(
        self,
        server_round: int,
        what: str,
        replies: Sequence[Message],
        reasons: Sequence[str | None],
    ) -> list[Refusal]:
        """Log a line for each reply that there is a reason for, and return them as refusals."""
        found = [pair for pair in zip(replies, reasons, strict=True) if pair[1] is not None]
        asked = {
            message.metadata.message_id: message.metadata.dst_node_id for message in self._asked
        }
        refusals = []
        for reply, reason in found[:MOST_AT_ONCE]:
            answered, sender = reply.metadata.reply_to_message_id, reply.metadata.src_node_id
            node = asked.get(answered, sender) if answered else sender
            said = f"{self._client(reply, node)}: {shown(reason)}"
            log(WARNING, "Round %d, %s: %s", server_round, what, said)
            refusals.append(Refusal(server_round, node, said))
        if more := len(found) - len(refusals):
            log(WARNING, "Round %d, %s: %d more", server_round, what, more)
        return refusals

    def _client(self, reply: Message, node: int) -> str:
        if self._name_node is not None and (name := self._name_node(node)) is not None:
            return f"{name} (node {node})"
        for metrics in reply.content.metric_records.values() if reply.has_content() else ():
            partition = metrics.get(PARTITION_KEY)
            if isinstance(partition, int):
                return f"node {node} (partition {shown(partition)})"
        return f"node {node}"
