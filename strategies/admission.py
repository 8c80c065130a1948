"""Which replies may enter the aggregate, and for each other one the reason it may not."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from flwr.app import Array, ArrayRecord, Message
from torch import Tensor

from .arrays import tensor_from_array
from .conventions import Convention

LOG_VAR_LIMIT = 40.0
"""The largest magnitude of an admitted log-variance: standard deviations from 2e-9 to 5e8."""

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
    ArrayRecord with the reference's keys, shapes and dtypes, finite values, and log-variances
    within ±40 whatever the unit of the scales.

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


def check_arrays(record: ArrayRecord, reference: ArrayRecord, convention: Convention) -> None:
    """Raise a ValueError that names the first array which may not enter an aggregate.

    Demanded are the reference's keys, shapes and dtypes, finite values, and log-variances within
    ±40 whatever the unit of the scales.
    """
    if missing := reference.keys() - record.keys():
        raise ValueError(f"array {min(missing)!r} is missing")
    if extra := record.keys() - reference.keys():
        raise ValueError(f"array {min(extra)!r} is not the global model's")
    scales = set(convention.pairs(reference.keys()).values())
    for key in reference:
        try:
            tensor = _same_kind(record[key], reference[key])
            if tensor.numel() and tensor.dtype.is_floating_point:
                _check_range(tensor, convention if key in scales else None)
        except ValueError as error:
            raise ValueError(f"array {key!r}: {error}") from error


def _same_kind(array: Array, reference: Array) -> Tensor:
    tensor, expected = tensor_from_array(array), tensor_from_array(reference)
    if tensor.shape != expected.shape:
        raise ValueError(f"its shape is {tuple(tensor.shape)}, not {tuple(expected.shape)}")
    if tensor.dtype != expected.dtype:
        raise ValueError(f"its dtype is {tensor.dtype}, not {expected.dtype}")
    return tensor


def _check_range(tensor: Tensor, convention: Convention | None) -> None:
    extremes = torch.stack(torch.aminmax(tensor)).double()
    if not extremes.isfinite().all():
        raise ValueError("it holds values that are not finite")
    if convention is None:
        return
    low, high = convention.to_log_var(extremes).float().tolist()
    if not -LOG_VAR_LIMIT <= low <= high <= LOG_VAR_LIMIT:
        raise ValueError(
            f"its log-variances run from {low:.6g} to {high:.6g}, "
            f"allowed are {-LOG_VAR_LIMIT:g} to {LOG_VAR_LIMIT:g}"
        )


def _client(reply: Message) -> str:
    node = f"node {reply.metadata.src_node_id}"
    if reply.has_error():
        return node
    for metrics in reply.content.metric_records.values():
        if PARTITION_KEY in metrics:
            return f"{node} (partition {metrics[PARTITION_KEY]})"
    return node
