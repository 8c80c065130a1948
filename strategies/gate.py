"""Faults of replies, bounds on their weights, distances, and who spoils an aggregate."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from statistics import median_low
from typing import TypeVar, cast

import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

from fedbary.aggregation.sums import PIECE, flat_reals, is_continuous, workers
from fedbary.errors import SettingError
from fedbary.texts import cause, shown

from .arrays import tensor_from_array
from .conventions import Convention, check_arrays
from .federation import Limit

LARGEST_NUMBER = 1e300
"""The largest magnitude of a metric or a weight: no sum of them overflows."""

MOST_NUMBERS = 1000
"""Most numbers in the metrics of an admitted reply; those in lists count singly."""

STRANGE_ARRAYS = "Unexpected key(s) in state_dict"
"""What PyTorch says of a message of a method, or with groups, that is loaded as a whole."""

NEEDS_CLIENT = "its message needs fedbary.strategies.Client"
"""Beginning of what is said of a client with that error."""

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
            said = f"{NEEDS_CLIENT}; {said}"
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


def weight_of(reply: Message, weighted_by_key: str) -> float:
    """Return the weight of an admitted reply."""
    return float(cast(float, metrics_of(reply)[weighted_by_key]))


def weightless(
    replies: Sequence[Message], refusals: Sequence[str | None], limit: Limit | None
) -> list[str | None]:
    """Add refusals of replies from nodes that hold nothing, whatever weight they claim."""
    return [
        reason
        or ("its node holds nothing that it could weigh" if _most(reply, limit) <= 0 else None)
        for reply, reason in zip(replies, refusals, strict=True)
    ]


def overweight(
    replies: Sequence[Message], weighted_by_key: str, limit: Limit | None
) -> list[str | None]:
    """Return a warning for each reply that claims more weight than its node holds, else None."""
    pairs = [(weight_of(reply, weighted_by_key), _most(reply, limit)) for reply in replies]
    return [
        f"{weighted_by_key} {weight:g} counts as {most:g}, as its node holds no more"
        if weight > most
        else None
        for weight, most in pairs
    ]


def at_most(weights: Sequence[float], ratio: float, of: Sequence[float]) -> list[float]:
    """Return weights of at most a ratio times the median of some.

    The median of an even number is its lower middle, so that half of them cannot raise it.
    """
    most = ratio * median_low(of)
    return [min(weight, most) for weight in weights]


def bounded(
    replies: Sequence[Message],
    weighted_by_key: str,
    limit: Limit | None,
    ratio: float | None,
    others: Sequence[float] = (),
) -> list[Message]:
    """Return admitted replies with bounded weights.

    With weights w_k and limits l_k of the nodes, and w'_k = min(w_k, l_k), reply k weighs min(w'_k,
    ratio · median w'); see `at_most`.

    Parameters
    ----------
    replies : sequence of Message
        They are not changed.
    weighted_by_key : str
        The metric that holds a reply's weight; the result may hold a smaller one.
    limit : callable, optional
        Takes a node's id, and returns the largest weight of its reply.
    ratio : float, optional
        The largest ratio of a weight to the median, 1 or more. None: no bound.
    others : sequence of float
        Weights of other replies that the median counts too.
    """
    weights = [weight_of(reply, weighted_by_key) for reply in replies]
    allowed = [
        min(weight, _most(reply, limit)) for weight, reply in zip(weights, replies, strict=True)
    ]
    if ratio is not None and allowed:
        allowed = at_most(allowed, ratio, [*allowed, *others])
    return [
        reply if may == weight else _weighing(reply, weighted_by_key, may)
        for reply, weight, may in zip(replies, weights, allowed, strict=True)
    ]


def _most(reply: Message, limit: Limit | None) -> float:
    most = None if limit is None else limit(reply.metadata.src_node_id)
    return math.inf if most is None else float(most)


def _weighing(reply: Message, weighted_by_key: str, weight: float) -> Message:
    (key,) = reply.content.metric_records
    metrics = MetricRecord({**metrics_of(reply), weighted_by_key: weight})
    lighter = copy(reply)
    lighter.content = RecordDict({**reply.content, key: metrics})
    return lighter


LEAST = 3
"""Least number of replies; among fewer none can be called the far one."""

FAR = 100.0
"""Multiple of the usual distance from which a reply is refused."""

NEAR = 10.0
"""Distance that a number may always move in a round, whatever other clients do."""


def farness(
    records: Sequence[ArrayRecord],
    like: ArrayRecord,
    keys: Collection[str],
    earlier: Sequence[float] = (),
) -> list[float]:
    """Return each reply's distance from the sent arrays, as a multiple of the usual one.

    A reply's distance is the largest of its numbers' distances. The usual distance is the replies'
    median (of an even number the lower middle one). It is at least 1/`FAR` of `NEAR`, and 1/`FAR`
    of the largest number that was sent. So a reply that moves no number by more than these two is
    never too far. Clients that stand still, or take a few steps where a large site takes thousands,
    do not make another client far.

    Parameters
    ----------
    records : sequence of ArrayRecord
        The arrays of admitted replies, at least one.
    like : ArrayRecord
        Form of a sound reply; the model's arrays are those that were sent.
    keys : collection of str
        The arrays that are compared.
    earlier : sequence of float
        Distances of other replies from the arrays sent to them, counted in the median.
    """
    with workers() as pool:
        distances = list(pool.map(lambda record: distance(record, like, keys), records))
    largest = max((_apart(like[key]) for key in keys), default=0.0)
    usual = max(median_low([*earlier, *distances]), largest / FAR, NEAR / FAR)
    return [far / usual for far in distances]


def distance(record: ArrayRecord, like: ArrayRecord, keys: Collection[str]) -> float:
    """Return the largest distance of a reply's numbers from the sent ones."""
    return max((_apart(record[key], like[key]) for key in keys), default=0.0)


def allowed_for(weights: float, others: float) -> float:
    """Return one multiple of the usual distance for a reply's weights and its other arrays.

    Log-variances and curvatures differ more than weights do between honest clients of unlike sizes,
    so their multiple counts 1/`FAR`.
    """
    return max(weights, others / FAR)


def too_far(weights: float, others: float) -> str | None:
    """Return the reason to refuse a reply with these multiples of the usual distance, or None.

    Means and point weights may lie `FAR` times as far, other arrays `FAR`² times.
    """
    times = allowed_for(weights, others)
    if times <= FAR:
        return None
    return f"it lies {times:.2g} times as far from the sent arrays as usual; the limit is {FAR:g}"


def _apart(array: Array, other: Array | None = None) -> float:
    """Return the largest distance of two arrays' numbers, or of one's from 0; 0 for integers."""
    tensor = tensor_from_array(array)
    if not is_continuous(tensor) or not tensor.numel():
        return 0.0
    wide = torch.promote_types(tensor.real.dtype, torch.float32)  # half floats might overflow
    pieces = flat_reals(tensor).split(PIECE)
    if other is None:
        return max(float(piece.abs().max()) for piece in pieces)
    there = flat_reals(tensor_from_array(other)).split(PIECE)
    pairs = zip(pieces, there, strict=True)
    return max(float((piece.to(wide) - where.to(wide)).abs_().max()) for piece, where in pairs)


_Reply = TypeVar("_Reply")


def spoilers(
    replies: Sequence[_Reply],
    attempt: Callable[[Sequence[_Reply]], object],
    distance: Callable[[_Reply], float],
) -> list[str | None]:
    """Return each reply's fault in the aggregate; None for replies whose aggregate is sound.

    Replies that are not sound alone are left out first. A reply is tried alone only where no half,
    quarter and so on of the replies with it is sound: one culprit of n costs 2 log₂ n attempts.
    Then the farthest of the others are left out, as few as bisection finds to be enough. If the
    aggregate of all is not sound, at least one is left out.

    Parameters
    ----------
    replies : sequence
        The replies, in an order that content alone sets.
    attempt : callable
        Aggregates some of them; raises a ValueError if the aggregate is not sound.
    distance : callable
        Returns a reply's distance from the arrays that its client was sent.
    """

    def fault(some: Sequence[int]) -> str | None:
        try:
            attempt([replies[k] for k in sorted(some)])
        except SettingError:  # too few for the rule: no reply's fault
            return None
        except ValueError as error:
            return f"it makes the aggregate unsound: {error}"
        return None

    def alone(some: Sequence[int]) -> dict[int, str]:
        if (reason := fault(some)) is None or len(some) < 2:
            return dict.fromkeys(some, reason) if reason else {}
        middle = len(some) // 2
        return alone(some[:middle]) | alone(some[middle:])

    reasons = list(map(alone(range(len(replies))).get, range(len(replies))))
    rest = sorted(
        (k for k, reason in enumerate(reasons) if reason is None),
        key=lambda k: distance(replies[k]),
    )
    if rest and (reason := fault(rest)):
        sound, unsound = 1, len(rest)
        while unsound - sound > 1:
            middle = (sound + unsound) // 2
            if said := fault(rest[:middle]):
                unsound, reason = middle, said
            else:
                sound = middle
        for k in rest[sound:]:
            reasons[k] = reason
    return reasons
