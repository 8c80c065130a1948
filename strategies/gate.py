"""The gate of a strategy: it refuses replies, and logs and keeps reason and client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from logging import INFO, WARNING

from flwr.app import ArrayRecord, Message, MessageType

from fedbary.aggregation.threads import workers
from fedbary.texts import shown

from .admission import evaluate_refusal, metrics_of, repeated, train_refusal
from .asking import question
from .conventions import Convention
from .internals import log
from .weights import Limit, bounded, overweight, weight_of, weightless

PARTITION_KEY = "partition-id"
"""The metric by which a reply may name the partition of its data."""

MOST_AT_ONCE = 100
"""Most refusals in a phase of a round that are logged and kept one by one."""

MOST_KEPT = 10_000
"""Number of refusals kept over all rounds, the latest."""


@dataclass(frozen=True)
class Refusal:
    """A reply that was left out.

    Parameters
    ----------
    round : int
        The server round of the reply.
    node_id : int
        The node that sent it, as Flower numbers it.
    reason : str
        One line that names the client and says what is wrong.
    """

    round: int
    node_id: int
    reason: str


@dataclass(frozen=True)
class Terms:
    """Conditions on the replies of a phase.

    Parameters
    ----------
    convention : Convention
        Rule that tells Gaussian arrays, and the unit of their scales.
    weighted_by_key : str
        The metric that holds a reply's weight.
    limit : callable, optional
        Takes a node's id, and returns the largest weight of its reply.
    max_weight_ratio : float, optional
        The largest ratio of a weight to the round's median.
    others : sequence of float
        Weights of earlier replies, which the median counts too.
    """

    convention: Convention
    weighted_by_key: str
    limit: Limit | None
    max_weight_ratio: float | None
    others: Sequence[float] = ()

    def refusal(self, reply: Message, expected: ArrayRecord) -> str | None:
        """Return the reason to refuse a training reply; `expected` has the form of a sound one."""
        return train_refusal(reply, expected, self.convention, self.weighted_by_key)


class ReplyGate:
    """Refuses replies; logs and keeps the reason and the client's name.

    Parameters
    ----------
    name_node : callable, optional
        Takes a node's id, and returns the name of its site; None if unknown.

    Attributes
    ----------
    refusals : list of Refusal
        The latest refusals over all rounds, at most `MOST_KEPT`.
    unanswered : set of int
        The nodes that were asked to train or to evaluate in the last round and did not reply.
    """

    def __init__(self, name_node: Callable[[int], str | None] | None = None) -> None:
        self._name_node = name_node
        self.refusals: list[Refusal] = []
        self.unanswered: set[int] = set()
        self._asked: list[Message] = []

    def ask(self, messages: Iterable[Message], anew: bool = False) -> None:
        """Remember the asked nodes: an error that Flower itself sends bears the id 1.

        `anew`: a round begins, and no node has failed to answer.
        """
        self._asked = list(messages)
        if anew:
            self.unanswered = set()

    def hear(self, replies: Sequence[Message], step: str) -> None:
        """Note the nodes that were asked and have not replied; log the line of Flower's FedAvg."""
        if replies:
            failed = sum(reply.has_error() for reply in replies)
            said = "%s: Received %d results and %d failures"
            log(INFO, said, step, len(replies) - failed, failed)
        asked = {message.metadata.dst_node_id for message in self._asked}
        self.unanswered |= asked - {reply.metadata.src_node_id for reply in replies}

    def trained(
        self, server_round: int, replies: Sequence[Message], expected: ArrayRecord, terms: Terms
    ) -> list[Message]:
        """Return the admitted training replies, with bounded weights.

        Their content alone sets their order.
        """
        reasons = self.faults(server_round, replies, expected, terms)
        return self._weighed(server_round, replies, reasons, terms)

    def faults(
        self, server_round: int, replies: Sequence[Message], expected: ArrayRecord, terms: Terms
    ) -> list[str | None]:
        """Return why training replies are not admitted; None for those that are. Nothing is kept.

        Parameters
        ----------
        server_round
            The round.
        replies
            Some of its replies.
        expected
            The form of a sound reply.
        terms
            Conditions on them.
        """
        with workers() as pool:
            reasons = list(pool.map(terms.refusal, replies, repeat(expected)))
        return self._answering(server_round, MessageType.TRAIN, replies, reasons, terms)

    def evaluated(
        self, server_round: int, replies: Sequence[Message], terms: Terms
    ) -> list[Message]:
        """Return the admitted evaluation replies; see `trained`."""
        reasons = [evaluate_refusal(reply, terms.weighted_by_key) for reply in replies]
        reasons = self._answering(server_round, MessageType.EVALUATE, replies, reasons, terms)
        return self._weighed(server_round, replies, reasons, terms)

    def admitted(
        self,
        server_round: int,
        replies: Sequence[Message],
        reasons: Sequence[str | None],
        weighted_by_key: str,
    ) -> list[Message]:
        """Return the replies without a reason for refusal; their content alone sets their order.

        The reasons of the others are logged and kept.
        """
        self.refuse(server_round, replies, reasons)
        admitted = [reply for reply, why in zip(replies, reasons, strict=True) if why is None]
        return sorted(admitted, key=lambda reply: _content(reply, weighted_by_key))

    def refuse(
        self, server_round: int, replies: Sequence[Message], reasons: Sequence[str | None]
    ) -> None:
        """Log and keep the reasons of the replies that have one."""
        self.refusals += self.said(server_round, "reply refused", replies, reasons)
        del self.refusals[:-MOST_KEPT]

    def said(
        self,
        server_round: int,
        what: str,
        replies: Sequence[Message],
        reasons: Sequence[str | None],
    ) -> list[Refusal]:
        """Log a line for each reply with a reason, and return these as refusals."""
        found = [pair for pair in zip(replies, reasons, strict=True) if pair[1] is not None]
        asked, refusals = self._node_by_question(), []
        for reply, reason in found[:MOST_AT_ONCE]:
            answered, sender = reply.metadata.reply_to_message_id, reply.metadata.src_node_id
            node = asked.get(answered, sender) if answered else sender
            said = f"{self._client(reply, node)}: {shown(reason)}"
            log(WARNING, "Round %d, %s: %s", server_round, what, said)
            refusals.append(Refusal(server_round, node, said))
        if more := len(found) - len(refusals):
            log(WARNING, "Round %d, %s: %d more", server_round, what, more)
        return refusals

    def _node_by_question(self) -> dict[str, int]:
        """Return the asked node of each message."""
        return {
            message.metadata.message_id: message.metadata.dst_node_id for message in self._asked
        }

    def _answering(
        self,
        server_round: int,
        message_type: str,
        replies: Sequence[Message],
        reasons: Sequence[str | None],
        terms: Terms,
    ) -> list[str | None]:
        """Add refusals of replies that their node should not have sent now, whatever they hold."""
        asked = self._node_by_question()
        reasons = [
            reason or _stranger(reply, asked)
            for reply, reason in zip(replies, reasons, strict=True)
        ]
        reasons = repeated(question(message_type, server_round), replies, reasons)
        return weightless(replies, reasons, terms.limit)

    def _weighed(
        self,
        server_round: int,
        replies: Sequence[Message],
        reasons: Sequence[str | None],
        terms: Terms,
    ) -> list[Message]:
        key = terms.weighted_by_key
        admitted = self.admitted(server_round, replies, reasons, key)
        heavy = overweight(admitted, key, terms.limit)
        self.said(server_round, "weight bounded", admitted, heavy)
        return bounded(admitted, key, terms.limit, terms.max_weight_ratio, terms.others)

    def _client(self, reply: Message, node: int) -> str:
        if self._name_node is not None and (name := self._name_node(node)) is not None:
            return f"{name} (node {node})"
        for metrics in reply.content.metric_records.values() if reply.has_content() else ():
            partition = metrics.get(PARTITION_KEY)
            if isinstance(partition, int):
                return f"node {node} (partition {shown(partition)})"
        return f"node {node}"


def first_sound(replies: Sequence[Message], terms: Terms) -> ArrayRecord:
    """Return the arrays of the first reply that is admitted when compared with itself."""
    carrying = [
        (reply, record)
        for reply in replies
        if reply.has_content()
        for record in reply.content.array_records.values()
    ]
    for reply, record in carrying:
        if terms.refusal(reply, record) is None:
            return record
    return carrying[0][1] if carrying else ArrayRecord()


def _stranger(reply: Message, asked: Mapping[str, int]) -> str | None:
    """Return the reason to refuse a reply that comes from a node other than the asked one."""
    sender, answered = reply.metadata.src_node_id, reply.metadata.reply_to_message_id
    if not answered or asked.get(answered, sender) == sender:
        return None
    return f"it comes from node {sender}, which was not asked this"


def _content(reply: Message, weighted_by_key: str) -> tuple[float, list[bytes], str]:
    records = reply.content.array_records.values()
    data = [record[key].data for record in records for key in sorted(record)]
    return weight_of(reply, weighted_by_key), data, repr(sorted(metrics_of(reply).items()))
