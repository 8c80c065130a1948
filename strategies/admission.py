"""Admission: which replies of a round count, which are refused and why, and rounds that count."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import repeat
from logging import INFO, WARNING

import torch
from flwr.app import ArrayRecord, Message, MessageType
from torch import Tensor

from fedbary.aggregation.sums import workers
from fedbary.aggregation.tensors import check_ratio
from fedbary.errors import RunError, SettingError
from fedbary.methods import Reply
from fedbary.texts import shown

from .conventions import Convention, check_arrays, names_of
from .federation import Federation, Limit, question
from .gate import (
    LEAST,
    NEEDS_CLIENT,
    allowed_for,
    arrays_of,
    bounded,
    distance,
    evaluate_refusal,
    farness,
    metric_refusals,
    metrics_of,
    overweight,
    repeated,
    spoilers,
    too_far,
    train_refusal,
    weight_of,
    weightless,
)
from .internals import ErrorCode, log

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


@dataclass(frozen=True, eq=False)
class Form:
    """The form that training replies are compared with.

    Parameters
    ----------
    sent : ArrayRecord
        The global arrays that clients were sent.
    like : ArrayRecord
        A record with the keys, shapes and dtypes of a sound reply.
    convention : Convention
        Rule that tells Gaussian arrays, and the unit of their scales.
    """

    sent: ArrayRecord
    like: ArrayRecord
    convention: Convention

    @cached_property
    def kinds(self) -> tuple[set[str], set[str]]:
        """The keys of the model's weights, and of a reply's other arrays."""
        scales = self.convention.pairs(self.sent.keys()).values()
        weights = (self.like.keys() & self.sent.keys()) - set(scales)
        return weights, self.like.keys() - weights


@dataclass(frozen=True, eq=False)
class Counted:
    """A round that counts.

    Parameters
    ----------
    arrays : ArrayRecord
        The aggregate.
    admitted : list of Message
        The replies that it is made of.
    replies : list of Reply
        These replies as they were read.
    distances : mapping of str to float
        Each client's distance from what was sent, as a multiple of the usual one.
    """

    arrays: ArrayRecord
    admitted: list[Message]
    replies: list[Reply]
    distances: Mapping[str, float]


class Admission:
    """Refuses replies, logs and keeps the reasons, and counts the rounds.

    Bad replies are unsound ones, those too far from the sent arrays, and those that spoil the
    aggregate. They never stop a run. Neither does the order of replies set a result.

    Parameters
    ----------
    federation : Federation
        The names and the limits of the nodes.
    convention : Convention
        Rule that tells Gaussian arrays, and the unit of their scales.
    weighted_by_key : str
        The metric that holds a reply's weight.
    withstands : callable
        Takes a number of replies; returns whether their aggregate limits each one's influence.
    min_replies : int
        With fewer admitted training replies the round is skipped.
    max_skipped : int or None
        Skipped rounds in a row after which the next ends the run. None: never.
    max_weight_ratio : float or None
        Largest ratio of a reply's weight to the round's median weight. None: no bound.

    Raises
    ------
    SettingError
        If an argument is out of its range.

    Attributes
    ----------
    tally : Tally
        The count of rounds.
    refusals : list of Refusal
        The latest refusals over all rounds, at most `MOST_KEPT`.
    unanswered : set of int
        The nodes that were asked to train or to evaluate in the last round and did not reply.
    num_admitted : int
        Number of admitted training replies in the last round.
    completed_rounds : int
        Rounds of earlier starts. Flower counts from 1; this is added to its count.
    round : int
        The last round whose arrays were sent.
    sent : ArrayRecord or None
        These arrays.
    """

    def __init__(
        self,
        federation: Federation,
        convention: Convention,
        weighted_by_key: str,
        withstands: Callable[[int], bool],
        min_replies: int,
        max_skipped: int | None,
        max_weight_ratio: float | None,
    ) -> None:
        check_ratio(max_weight_ratio, "max_weight_ratio")
        if not isinstance(min_replies, int) or min_replies < 1:
            raise SettingError("min_replies", min_replies, "1 or more")
        self.federation, self.convention = federation, convention
        self.weighted_by_key, self.withstands = weighted_by_key, withstands
        self.min_replies, self.max_weight_ratio = min_replies, max_weight_ratio
        self.tally = Tally(max_skipped)
        self.refusals: list[Refusal] = []
        self.unanswered: set[int] = set()
        self.num_admitted = self.round = self.completed_rounds = 0
        self.sent: ArrayRecord | None = None
        self._asked: list[Message] = []

    def client(self, reply: Message) -> str:
        """Return the name by which a method knows the client of a reply."""
        return self.federation.client(reply.metadata.src_node_id)

    def begin(self, round_here: int, arrays: ArrayRecord) -> None:
        """Begin a round of this start; a RunError if too many have been skipped."""
        self.send(round_here, arrays)
        if self.round == 1:
            self.tally = Tally(self.tally.max_skipped)
        self.tally.begin()

    def send(self, round_here: int, arrays: ArrayRecord) -> None:
        """Note the arrays of a round of this start."""
        self.round, self.sent = round_here + self.completed_rounds, arrays

    def ask(self, messages: Iterable[Message], anew: bool = False) -> None:
        """Remember the asked nodes: an error that Flower itself sends bears the id 1.

        `anew`: a round begins, and no node has failed to answer.
        """
        self._asked = list(messages)
        if anew:
            self.unanswered = set()

    def first_sound(self, replies: Sequence[Message]) -> ArrayRecord:
        """Return the arrays of the first reply that is admitted when compared with itself."""
        carrying = [
            (reply, record)
            for reply in replies
            if reply.has_content()
            for record in reply.content.array_records.values()
        ]
        for reply, record in carrying:
            if self._refusal(reply, record) is None:
                return record
        return carrying[0][1] if carrying else ArrayRecord()

    def trained(
        self,
        server_round: int,
        replies: Sequence[Message],
        form: Form,
        other_weights: Sequence[float],
    ) -> list[Message]:
        """Return the admitted training replies, with bounded weights.

        Their content alone sets their order. `other_weights` are weights of earlier replies, which
        the median weight counts too.
        """
        self._hear(replies, "aggregate_train")
        reasons, limit = self.faults(server_round, replies, form), self.federation.train_limit
        admitted = self._weighed(server_round, replies, reasons, limit, other_weights)
        if not admitted:
            self.tally.fail(self._could_not_train(r, server_round, form) for r in replies)
        return admitted

    def _first_refusal(self, server_round: int) -> str:
        """Return the reason of a round's first refusal; "" if there is none."""
        return next((f"; {r.reason}" for r in self.refusals if r.round == server_round), "")

    def all_need_client(self, server_round: int, replies: int) -> bool:
        """Return whether a round's replies all say that the client cannot read its message."""
        found = [r for r in self.refusals if r.round == server_round and NEEDS_CLIENT in r.reason]
        return len(found) == min(replies, MOST_AT_ONCE)

    def faults(self, server_round: int, replies: Sequence[Message], form: Form) -> list[str | None]:
        """Return why training replies are not admitted; None for those that are.

        Nothing is kept.
        """
        with workers() as pool:
            reasons = list(pool.map(self._refusal, replies, repeat(form.like)))
        limit = self.federation.train_limit
        return self._answering(server_round, MessageType.TRAIN, replies, reasons, limit)

    def evaluated(self, server_round: int, replies: Sequence[Message]) -> list[Message]:
        """Return the admitted evaluation replies whose metrics can be averaged; see `trained`."""
        self._hear(replies, "aggregate_evaluate")
        found = [evaluate_refusal(reply, self.weighted_by_key) for reply in replies]
        limit = self.federation.evaluate_limit
        reasons = self._answering(server_round, MessageType.EVALUATE, replies, found, limit)
        weighed = self._weighed(server_round, replies, reasons, limit)
        unusual = metric_refusals(weighed, self.federation.known_metrics)
        return self.admitted(server_round, weighed, unusual)

    def aggregated(
        self,
        server_round: int,
        admitted: list[Message],
        form: Form,
        aggregate: Callable[[ArrayRecord, Sequence[Reply]], ArrayRecord],
        accept: Callable[[int, list[Message]], list[Message] | None],
    ) -> Counted | None:
        """Return the aggregate of admitted replies; None if the round is skipped, or goes on.

        Replies that lie too far are refused, and then those that spoil the aggregate.

        Parameters
        ----------
        server_round
            The round.
        admitted
            Replies that are sound.
        form
            The form that they are compared with.
        aggregate
            Takes the global arrays and replies, and returns their aggregate. A SettingError skips
            the round; another ValueError says that a reply spoils it.
        accept
            Returns the replies that may count; None if the round waits for further ones.
        """
        while True:
            if (accepted := accept(server_round, admitted)) is None:
                return None
            admitted, self.num_admitted = accepted, len(accepted)
            if len(admitted) < self.min_replies:
                few = f"{len(admitted)} replies admitted, {self.min_replies} needed"
                self.tally.skip(server_round, few + self._first_refusal(server_round))
                return None
            records = [arrays_of(reply) for reply in admitted]
            far = [farness(records, form.like, keys) for keys in form.kinds]
            reasons: list[str | None] = []
            if len(admitted) >= LEAST and not self.withstands(len(admitted)):
                reasons = list(map(too_far, *far))
            if not any(reasons):
                names = names_of(records[0].keys(), self.convention)
                replies = [
                    Reply(self.client(reply), self.weight(reply), names.read(record))
                    for reply, record in zip(admitted, records, strict=True)
                ]
                sent = records[0] if self.sent is None else self.sent
                attempt = partial(self._attempt, aggregate, form, sent)
                try:
                    arrays = attempt(replies)
                except SettingError as error:
                    self.tally.skip(server_round, str(error))
                    return None
                except ValueError:
                    moves = [distance(record, form.like, form.like.keys()) for record in records]
                    by_reply = dict(zip(replies, moves, strict=True))
                    reasons = spoilers(replies, attempt, by_reply.__getitem__)
                else:
                    clients = [reply.client for reply in replies]
                    distances = dict(zip(clients, map(allowed_for, *far), strict=True))
                    return Counted(arrays, admitted, replies, distances)
            admitted = self.admitted(server_round, admitted, reasons)

    def _attempt(
        self,
        aggregate: Callable[[ArrayRecord, Sequence[Reply]], ArrayRecord],
        form: Form,
        sent: ArrayRecord,
        replies: Sequence[Reply],
    ) -> ArrayRecord:
        """Return the aggregate of some replies; a ValueError if it is not sound."""
        arrays = aggregate(sent, replies)
        check_arrays(arrays, form.sent, self.convention)
        return arrays

    def weight(self, reply: Message) -> float:
        """Return the weight of an admitted reply."""
        return weight_of(reply, self.weighted_by_key)

    def with_usual_metrics(self, server_round: int, counted: Counted) -> list[int]:
        """Return the places of the replies whose metrics can be averaged; log the others."""
        left_out = metric_refusals(counted.admitted, self.federation.known_metrics)
        self._said(server_round, "metrics left out", counted.admitted, left_out)
        return [place for place, why in enumerate(left_out) if why is None]

    def admitted(
        self, server_round: int, replies: Sequence[Message], reasons: Sequence[str | None]
    ) -> list[Message]:
        """Return the replies without a reason for refusal; their content alone sets their order.

        The reasons of the others are logged and kept.
        """
        self.refusals += self._said(server_round, "reply refused", replies, reasons)
        del self.refusals[:-MOST_KEPT]
        admitted = [reply for reply, why in zip(replies, reasons, strict=True) if why is None]
        return sorted(admitted, key=lambda reply: _content(reply, self.weighted_by_key))

    def _refusal(self, reply: Message, like: ArrayRecord) -> str | None:
        return train_refusal(reply, like, self.convention, self.weighted_by_key)

    def _could_not_train(self, reply: Message, server_round: int, form: Form) -> bool:
        """Return whether a refused reply shows that its client could not train in this round.

        It does if the client raised an error, or if its content is unsound. Errors of Flower, late
        replies and sites past their budgets do not.
        """
        if reply.has_error():
            raised = reply.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
            return raised and "LimitReached" not in (reply.error.reason or "")
        late = reply.metadata.group_id not in ("", question(MessageType.TRAIN, server_round))
        return not late and self._refusal(reply, form.like) is not None

    def _hear(self, replies: Sequence[Message], step: str) -> None:
        """Note the nodes that were asked and have not replied; log the line of Flower's FedAvg."""
        if replies:
            failed = sum(reply.has_error() for reply in replies)
            said = "%s: Received %d results and %d failures"
            log(INFO, said, step, len(replies) - failed, failed)
        asked = {message.metadata.dst_node_id for message in self._asked}
        self.unanswered |= asked - {reply.metadata.src_node_id for reply in replies}

    def _said(
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
            said = f"{self._site(reply, node)}: {shown(reason)}"
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
        limit: Limit | None,
    ) -> list[str | None]:
        """Add refusals of replies that their node should not have sent now, whatever they hold."""
        asked = self._node_by_question()
        reasons = [
            reason or _stranger(reply, asked)
            for reply, reason in zip(replies, reasons, strict=True)
        ]
        reasons = repeated(question(message_type, server_round), replies, reasons)
        return weightless(replies, reasons, limit)

    def _weighed(
        self,
        server_round: int,
        replies: Sequence[Message],
        reasons: Sequence[str | None],
        limit: Limit | None,
        other_weights: Sequence[float] = (),
    ) -> list[Message]:
        """Return the replies without a reason for refusal, with bounded weights."""
        key, admitted = self.weighted_by_key, self.admitted(server_round, replies, reasons)
        heavy = overweight(admitted, key, limit)
        self._said(server_round, "weight bounded", admitted, heavy)
        return bounded(admitted, key, limit, self.max_weight_ratio, other_weights)

    def _site(self, reply: Message, node: int) -> str:
        """Return how a refusal names a client."""
        if self.federation.name is not None and (name := self.federation.name(node)) is not None:
            return f"{name} (node {node})"
        for metrics in reply.content.metric_records.values() if reply.has_content() else ():
            partition = metrics.get(PARTITION_KEY)
            if isinstance(partition, int):
                return f"node {node} (partition {shown(partition)})"
        return f"node {node}"


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
