"""Admission of replies to the aggregate, and the reasons of refusals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from flwr.app import ArrayRecord, Message, MetricRecord

from fedbary.texts import cause, shown

from .conventions import Convention
from .soundness import check_arrays

LARGEST_NUMBER = 1e300
"""The largest magnitude of a metric or a weight: no sum of them overflows."""

MOST_NUMBERS = 1000
"""Most numbers in the metrics of an admitted reply; those in lists count singly."""

STRANGE_ARRAYS = "Unexpected key(s) in state_dict"
"""What PyTorch says of a message of a method, or with groups, that is loaded as a whole."""

_ROUNDING = 1e-6


def train_refusal(
    reply: Message, reference: ArrayRecord, convention: Convention, weighted_by_key: str
) -> str | None:
    """Say why a training reply is refused; None if it is admitted.

    It is admitted if `evaluate_refusal` admits it and it holds one ArrayRecord that `check_arrays`
    finds sound.

    Parameters
    ----------
    reply : Message
        A client's reply or error. It is not changed, and nothing in it is unpickled.
    reference : ArrayRecord
        The global arrays that the clients were sent.
    convention : Convention
        Rule that tells Gaussian arrays, and the unit of their scales.
    weighted_by_key : str
        The metric that holds the reply's weight.

    Returns
    -------
    str or None
        The fault, without the client's name. Like the texts of the other functions here it may
        quote the client: pass it through `fedbary.texts.shown` before you log it.
    """
    if reason := evaluate_refusal(reply, weighted_by_key):
        return reason
    records = list(reply.content.array_records.values())
    try:
        if len(records) != 1:
            raise ValueError(f"{len(records)} ArrayRecords, not one")
        check_arrays(records[0], reference, convention)
    except ValueError as error:
        return str(error)
    return None


def evaluate_refusal(reply: Message, weighted_by_key: str) -> str | None:
    """Say why an evaluation reply is refused; None if it is admitted.

    It is admitted if it holds one MetricRecord of at most `MOST_NUMBERS` numbers, whose weight is
    above 0 and at most `LARGEST_NUMBER`.
    """
    try:
        _check_metrics(reply, weighted_by_key)
    except ValueError as error:
        return str(error)
    return None


def repeated(
    question: str, replies: Sequence[Message], refusals: Sequence[str | None]
) -> list[str | None]:
    """Add refusals of second replies, and of replies to another question, as in an earlier round.

    Parameters
    ----------
    question : str
        The group that marks the messages; a reply to an unmarked message passes.
    replies : sequence of Message
        The round's replies.
    refusals : sequence of str or None
        Reason of each earlier refusal. A refused reply does not count as the node's first.
    """
    seen: set[int] = set()
    reasons = []
    for reply, reason in zip(replies, refusals, strict=True):
        node_id, answered = reply.metadata.src_node_id, reply.metadata.group_id
        if reason is None and answered not in ("", question):
            reason = f"late, it answers {answered!r}"
        if reason is None and node_id in seen:
            reason = "it has replied already"
        if reason is None:
            seen.add(node_id)
        reasons.append(reason)
    return reasons


def arrays_of(reply: Message) -> ArrayRecord:
    """Return the arrays of an admitted reply."""
    return next(iter(reply.content.array_records.values()))


def metrics_of(reply: Message) -> MetricRecord:
    """Return the metrics of an admitted reply."""
    return next(iter(reply.content.metric_records.values()))


def metric_refusals(
    replies: Sequence[Message], known: Mapping[str, tuple[float, float]] | None = None
) -> list[str | None]:
    """Say why metrics of admitted replies cannot be averaged with the others'; None if they can.

    Sound metrics are finite. Under a `known` key they hold a number (no list) within its range, up
    to rounding; other keys are then ignored. Without known keys metrics must have the commonest
    form, which is their keys and list lengths. Among equally common forms the one with fewer lists
    wins, then the one with more numbers, then the first.
    """
    unsound = [_unsound(reply, known or {}) for reply in replies]
    if known:
        return unsound
    forms = [_form(reply) for reply in replies]
    counts = Counter(form for form, why in zip(forms, unsound, strict=True) if why is None)

    def preference(form: _Form) -> tuple[int, int, int]:
        lists = sum(size is not None for _, size in form)
        return counts[form], -lists, len(form)

    usual = max(counts, key=preference, default=())
    expected = _listed(usual)
    return [
        why or (None if form == usual else f"its metrics are {_listed(form)}, not {expected}")
        for form, why in zip(forms, unsound, strict=True)
    ]


_Form = tuple[tuple[str, int | None], ...]


def _unsound(reply: Message, known: Mapping[str, tuple[float, float]]) -> str | None:
    """Say which metric may not enter a mean, and why; None if all may."""
    for key, value in metrics_of(reply).items():
        numbers = value if isinstance(value, list) else [value]
        if not all(abs(number) <= LARGEST_NUMBER for number in numbers):
            return f"its metric {key!r} is not finite"
        if key not in known:
            continue
        least, most = known[key]
        if isinstance(value, list):
            return f"its metric {key!r} is a list, not a number"
        if not least - _ROUNDING <= value <= most + _ROUNDING:
            return f"its metric {key!r} is {value:g}, allowed are {least:g} to {most:g}"
    return None


def _form(reply: Message) -> _Form:
    return tuple(
        (key, len(value) if isinstance(value, list) else None)
        for key, value in sorted(metrics_of(reply).items())
    )


def _listed(form: _Form) -> str:
    return shown(", ".join(key if size is None else f"{key}[{size}]" for key, size in form))


def _check_metrics(reply: Message, weighted_by_key: str) -> None:
    if reply.has_error():
        said = f"replied with error {reply.error.code}: {cause(reply.error.reason)}"
        if STRANGE_ARRAYS in (reply.error.reason or ""):
            said = f"its message needs fedbary.strategies.Client; {said}"
        raise ValueError(said)
    records = list(reply.content.metric_records.values())
    if len(records) != 1:
        raise ValueError(f"{len(records)} MetricRecords, not one")
    metrics = records[0]
    held = sum(len(value) if isinstance(value, list) else 1 for value in metrics.values())
    if max(held, len(metrics)) > MOST_NUMBERS:
        raise ValueError(f"its metrics hold {held} numbers, allowed are {MOST_NUMBERS}")
    if strange := [key for key in metrics if shown(key) != key]:
        raise ValueError(f"its metric {strange[0]!r} has no short, printable name")
    weight = metrics.get(weighted_by_key)
    if weight is None:
        raise ValueError(f"no metric {weighted_by_key!r} to weigh it by")
    if isinstance(weight, list) or not 0 < weight <= LARGEST_NUMBER:
        raise ValueError(f"weight {weighted_by_key!r} is {weight}, not a positive finite number")
