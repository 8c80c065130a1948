"""The gate of a strategy: it refuses replies, and logs and keeps reason and client."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import repeat
from logging import INFO, WARNING
from statistics import median_low
from typing import TypeVar, cast

import torch
from flwr.app import Array, ArrayRecord, Message, MessageType, MetricRecord, RecordDict
from torch import Tensor

from fedbary.aggregation.sums import PIECE, flat_reals, is_continuous, workers
from fedbary.errors import RunError, SettingError
from fedbary.texts import cause, shown

from .arrays import tensor_from_array
from .asking import question
from .conventions import Convention, check_arrays
from .internals import log

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


Limit = Callable[[int], float | None]
"""Takes a node's id, and returns the largest weight of its reply; None if unknown."""


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


def farthest(record: ArrayRecord, reference: ArrayRecord) -> float:
    """Return the largest distance of a value in the record from the reference's."""
    most = 0.0
    for key, array in record.items():
        tensor = tensor_from_array(array)
        if is_continuous(tensor) and tensor.numel():
            there = flat_reals(tensor_from_array(reference[key])).double()
            most = max(most, float((flat_reals(tensor).double() - there).abs().max()))
    return most


_NUMBERS, _LAST, _FARTHEST = "tally", "tally.last", "tally.farthest"

NAMED = 3
"""Number of a round's farthest replies that an error names."""


class Stalled(RunError):
    """No client could train after a round that counted, in as many rounds as may be skipped.

    Parameters
    ----------
    text : str
        The error's line.
    round : int
        The round that counted.
    """

    def __init__(self, text: str, round: int) -> None:
        super().__init__(text)
        self.round = round


class Tally:
    """Counts the rounds that gave an aggregate and the rounds that were skipped.

    Parameters
    ----------
    max_skipped : int or None
        Skipped rounds in a row after which no other begins. None: no limit.

    Raises
    ------
    SettingError
        If `max_skipped` is below 1.

    Attributes
    ----------
    counted, skipped : int
        Numbers of rounds.
    is_open : bool
        Whether a round has begun, and has neither counted nor been skipped.
    """

    def __init__(self, max_skipped: int | None) -> None:
        if max_skipped is not None and max_skipped < 1:
            raise SettingError("max_skipped", max_skipped, "1 or more, or None")
        self.max_skipped = max_skipped
        self.counted = 0
        self.skipped = 0
        self.is_open = False
        self._in_a_row = 0
        self._failed = 0
        self._counted_last = 0
        self._last = ""
        self._farthest = ""

    def state_dict(self) -> dict[str, Tensor]:
        """Return the counts and what an error would say, for a resume."""
        numbers = self.counted, self.skipped, self._in_a_row, self._failed, self._counted_last
        texts = {_LAST: self._last, _FARTHEST: self._farthest}
        state = {
            name: torch.tensor(list(text.encode()), dtype=torch.uint8)
            for name, text in texts.items()
        }
        return {_NUMBERS: torch.tensor(numbers), **state}

    def load_state_dict(self, state: Mapping[str, Tensor], completed_rounds: int) -> None:
        """Take a state of `state_dict`; without counts in it all earlier rounds count."""
        known = state.get(_NUMBERS, torch.tensor([completed_rounds, 0, 0, 0, 0]))
        self.counted, self.skipped, self._in_a_row, self._failed, self._counted_last = (
            known.tolist()
        )
        nothing = torch.tensor([], dtype=torch.uint8)
        self._last, self._farthest = (
            bytes(state.get(name, nothing).tolist()).decode() for name in (_LAST, _FARTHEST)
        )

    def begin(self) -> None:
        """Begin a round; raise a RunError if the last `max_skipped` rounds were skipped.

        It is a `Stalled` if in none of them a client could train.
        """
        self.is_open = True
        if self.max_skipped is None or self._in_a_row < self.max_skipped:
            return
        said = f"{self._in_a_row} rounds in a row were skipped; {self._last}"
        mend = f"with a max_skipped above {self._in_a_row}"
        if self._counted_last and self._failed == self._in_a_row:
            said += f"; {self._blamed()}; to go on, resume before round {self._counted_last} with "
            said += f"clipping, if the method has it, or without a client; or here {mend}"
            raise Stalled(said, self._counted_last)
        raise RunError(f"{said}; to go on, resume {mend}")

    def count(self, server_round: int, distances: Mapping[str, float]) -> None:
        """Note a round that gave an aggregate, and the distances of its clients' replies."""
        self.counted += 1
        self.is_open = False
        self._in_a_row = self._failed = 0
        self._counted_last = server_round
        farthest = sorted(distances.items(), key=lambda pair: (-pair[1], pair[0]))[:NAMED]
        self._farthest = ", ".join(f"{name} ({times:.2g})" for name, times in farthest)

    def fail(self, could_not_train: Iterable[bool]) -> None:
        """Note that a round has no admitted reply, and whose clients could not train."""
        self._failed += any(could_not_train)

    def skip(self, server_round: int, reason: str) -> None:
        """Note and log a skipped round."""
        self.skipped += 1
        self.is_open = False
        self._in_a_row += 1
        self._last = f"round {server_round}: {reason}"
        log(WARNING, "aggregate_train: round %d is skipped: %s", server_round, reason)

    def end(self) -> None:
        """Log how many rounds counted; raise a RunError if none did."""
        rounds = self.counted + self.skipped
        if rounds and not self.counted:
            raise RunError(f"every round was skipped; {self._last}")
        last = f"; the last that was skipped: {self._last}" if self.skipped else ""
        if self._in_a_row and self._counted_last and self._failed == self._in_a_row:
            last += f"; {self._blamed()}"
        level = WARNING if self.skipped else INFO
        log(level, "%d of %d rounds counted%s", self.counted, rounds, last)

    def _blamed(self) -> str:
        """Say after which round no client could train, and which replies lay farthest in it."""
        return (
            f"no client could train after round {self._counted_last}; in it these replies lay "
            f"farthest, in multiples of the usual distance: {self._farthest}"
        )


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
