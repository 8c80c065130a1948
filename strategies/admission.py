"""Which replies may enter the aggregate, and for each other one the reason it may not."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from flwr.app import ArrayRecord, Message

from .conventions import Convention
from .limits import check_arrays

PARTITION_KEY = "partition-id"
"""The metric by which a reply may tell which partition of the data it comes from."""


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


def train_refusal(
    reply: Message, reference: ArrayRecord, convention: Convention, weighted_by_key: str
) -> str | None:
    """Say why a training reply is refused; None if it is admitted.

    Admitted is a reply with one MetricRecord whose weight is a positive finite number, and one
    ArrayRecord that `check_arrays` finds sound.

    Parameters
    ----------
    reply : Message
        A client's reply or error; never changed, and nothing in it is unpickled.
    reference : ArrayRecord
        The global arrays that the clients were sent.
    convention : Convention
        Which arrays are Gaussian, and the unit of their scales.
    weighted_by_key : str
        The metric that holds the reply's weight.
    """
    if reason := evaluate_refusal(reply, weighted_by_key):
        return reason
    records = list(reply.content.array_records.values())
    try:
        if len(records) != 1:
            raise ValueError(f"{len(records)} ArrayRecords, not one")
        check_arrays(records[0], reference, convention)
    except ValueError as error:
        return f"{_client(reply)}: {error}"
    return None


def evaluate_refusal(reply: Message, weighted_by_key: str) -> str | None:
    """Say why an evaluation reply is refused; None if it is admitted.

    Admitted is a reply with one MetricRecord whose weight is a positive finite number.
    """
    try:
        _check_weight(reply, weighted_by_key)
    except ValueError as error:
        return f"{_client(reply)}: {error}"
    return None


def repeated(
    question: str, replies: Sequence[Message], refusals: Sequence[str | None]
) -> list[str | None]:
    """Refuse, too, replies to another question, of a round before say, and second replies.

    Parameters
    ----------
    question : str
        The group that the messages were marked with; a reply to an unmarked one passes.
    replies : sequence of Message
        The round's replies.
    refusals : sequence of str or None
        Why each is refused already; a refused reply does not count as the node's first.
    """
    seen: set[int] = set()
    reasons = []
    for reply, reason in zip(replies, refusals, strict=True):
        node_id, answered = reply.metadata.src_node_id, reply.metadata.group_id
        if reason is None and answered not in ("", question):
            reason = f"{_client(reply)}: late, it answers {answered!r}"
        if reason is None and node_id in seen:
            reason = f"{_client(reply)}: it has replied already"
        if reason is None:
            seen.add(node_id)
        reasons.append(reason)
    return reasons


def metric_refusals(replies: Sequence[Message]) -> list[str | None]:
    """Say of each admitted reply why its metrics cannot be averaged with the others'.

    None for the replies whose metrics are finite and have the commonest keys and list lengths (of
    equally common ones the first), which can be averaged among themselves.
    """
    infinite = [_infinite(reply) for reply in replies]
    forms = [_form(reply) for reply in replies]
    sound = Counter(form for form, key in zip(forms, infinite, strict=True) if key is None)
    usual = max(sound, key=lambda form: sound[form], default=())
    reasons: list[str | None] = []
    for reply, form, key in zip(replies, forms, infinite, strict=True):
        if key is not None:
            reasons.append(f"{_client(reply)}: its metric {key!r} is not finite")
        elif form != usual:
            named = f"its metrics are {_listed(form)}, not {_listed(usual)}"
            reasons.append(f"{_client(reply)}: {named}")
        else:
            reasons.append(None)
    return reasons


def _infinite(reply: Message) -> str | None:
    """Return the key of a metric that is not finite; None if all are."""
    for key, value in next(iter(reply.content.metric_records.values())).items():
        numbers = value if isinstance(value, list) else [value]
        if not all(abs(number) <= sys.float_info.max for number in numbers):
            return key
    return None


def _form(reply: Message) -> tuple[tuple[str, int | None], ...]:
    metrics = next(iter(reply.content.metric_records.values()))
    return tuple(
        (key, len(value) if isinstance(value, list) else None)
        for key, value in sorted(metrics.items())
    )


def _listed(form: tuple[tuple[str, int | None], ...]) -> str:
    return ", ".join(key if size is None else f"{key}[{size}]" for key, size in form)


def _check_weight(reply: Message, weighted_by_key: str) -> None:
    if reply.has_error():
        reason = " ".join(str(reply.error.reason).split())
        raise ValueError(f"replied with error {reply.error.code}: {reason:.200}")
    records = list(reply.content.metric_records.values())
    if len(records) != 1:
        raise ValueError(f"{len(records)} MetricRecords, not one")
    weight = records[0].get(weighted_by_key)
    if weight is None:
        raise ValueError(f"no metric {weighted_by_key!r} to weigh it by")
    if isinstance(weight, list) or not 0 < weight <= sys.float_info.max:
        raise ValueError(f"weight {weighted_by_key!r} is {weight}, not a positive finite number")


def _client(reply: Message) -> str:
    node = f"node {reply.metadata.src_node_id}"
    if reply.has_error():
        return node
    for metrics in reply.content.metric_records.values():
        if PARTITION_KEY in metrics:
            return f"{node} (partition {metrics[PARTITION_KEY]})"
    return node
