"""A strategy whose server does not wait: questions that are out, clocks, replies of any age."""

from __future__ import annotations

import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from numbers import Real
from random import Random
from statistics import fmean
from typing import Any
from urllib.parse import quote, unquote

import torch
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from torch import Tensor

from fedbary.aggregation.arriving import parts_of
from fedbary.aggregation.sums import under
from fedbary.errors import RunError, SettingError
from fedbary.methods import Arrival, Reply, Server, Tensors
from fedbary.runs.journal import FAILED, LOST, REPLIED, checked
from fedbary.seeds import derive_seed
from fedbary.settings.modes import Asynchronous

from .arrays import array_from_tensor, tensor_from_array
from .asking import question
from .conventions import Names
from .gate import LEAST, arrays_of, at_most, distance, farness, too_far, weight_of
from .gated import SKIPPED_KEY
from .internals import ErrorCode
from .method_strategy import MethodStrategy
from .privacy import driving_wrapper

_ERRANDS = "errand/"


@dataclass(frozen=True, eq=False)
class Errand:
    """A question that is out.

    Parameters
    ----------
    client : str
        The name of its site.
    round : int
        The aggregate that the server was to make when it asked.
    asked : float
        Time of the question, in seconds on its clock.
    message : Message
        The message.
    message_id : str
        Id to pull the reply by; empty before it is sent, and if the SuperLink does not take it.
    arrives : float
        Time of the reply; inf if unknown.
    """

    client: str
    round: int
    asked: float
    message: Message
    message_id: str = ""
    arrives: float = math.inf

    @property
    def is_sent(self) -> bool:
        """Whether a reply can come."""
        return bool(self.message_id)

    def to(self, node: int) -> Errand:
        """Return the errand with its question to another node, as after a restart."""
        group_id = question(MessageType.TRAIN, self.round)
        message = Message(self.message.content, node, MessageType.TRAIN, group_id=group_id)
        return replace(self, message=message)

    def pushed(self, message_id: str) -> Errand:
        """Return the errand once it is sent."""
        return replace(self, message_id=message_id)


def pushed(grid: Grid, messages: Sequence[Message]) -> list[str]:
    """Push messages, and return the id of each; empty for one that the SuperLink does not take.

    It takes none to a node that has just left, and none of messages that are too large together.
    """
    ids = [message_id or "" for message_id in grid.push_messages(messages)]
    return ids if len(ids) == len(messages) else [""] * len(messages)


def written(errand: Errand) -> dict[str, Tensor]:
    """Return the tensors that `errands` reads."""
    prefix = f"{_ERRANDS}{quote(errand.client, safe='')}/"
    (arrays,) = errand.message.content.array_records.values()
    (config,) = errand.message.content.config_records.values()
    said = json.dumps(dict(config)).encode()
    return {
        f"{prefix}round": torch.tensor(errand.round),
        f"{prefix}asked": torch.tensor(errand.asked, dtype=torch.float64),
        f"{prefix}arrives": torch.tensor(errand.arrives, dtype=torch.float64),
        f"{prefix}config": torch.tensor(list(said), dtype=torch.uint8),
        **{f"{prefix}arrays/{key}": tensor_from_array(a).clone() for key, a in arrays.items()},
    }


def errands(state: Mapping[str, Tensor], arrays_key: str, config_key: str) -> dict[str, Errand]:
    """Return the errands in a state by client, to be sent to the nodes of now.

    Parameters
    ----------
    state
        Tensors from `written`, perhaps among others.
    arrays_key, config_key
        The names of a message's records.
    """
    held = under(_ERRANDS, state)
    found = {}
    for quoted in sorted({key.partition("/")[0] for key in held}):
        own = under(f"{quoted}/", held)
        arrays = {k: array_from_tensor(t) for k, t in under("arrays/", own).items()}
        config = ConfigRecord(json.loads(bytes(own["config"].tolist())))
        content = RecordDict({arrays_key: ArrayRecord(arrays), config_key: config})
        client, number = unquote(quoted), int(own["round"])
        message = Message(content, 0, MessageType.TRAIN)
        asked, arrives = float(own["asked"]), float(own["arrives"])
        found[client] = Errand(client, number, asked, message, arrives=arrives)
    return found


POLL_SECONDS = 0.1


class ReplyClock(ABC):
    """A clock that chooses the clients to ask, and the reply that arrives next."""

    def chosen(
        self, server_round: int, now: float, drawn: Collection[str], free: Collection[str]
    ) -> Collection[str]:
        """Return the clients that the server asks now: those drawn from the free ones."""
        return drawn

    def begin(self, now: float) -> None:  # noqa: B027 - a virtual clock needs no beginning
        """Let time go on from here."""

    @abstractmethod
    def arrival(self, node: int, errand: Errand) -> float:
        """Return the time at which the reply to a question arrives; inf if it is not known."""

    @abstractmethod
    def next(
        self, grid: Grid, at_work: Collection[Errand], timeout: float
    ) -> tuple[Errand, float, Message | None]:
        """Return the next question to end, its time, and its reply; None if that is lost."""


class VirtualClock(ReplyClock):
    """Replies arrive in the order of this clock, at any real speed.

    Parameters
    ----------
    seconds : callable
        Takes a node's id and the virtual time, and returns the seconds until the reply to a
        question asked then.
    """

    def __init__(self, seconds: Callable[[int, float], float]) -> None:
        self._seconds = seconds

    def arrival(self, node: int, errand: Errand) -> float:
        """Return the time of the question and the seconds that the node takes."""
        seconds = self._seconds(node, errand.asked)
        if not isinstance(seconds, Real) or not 0 <= seconds < math.inf:  # NumPy's numbers too
            raise SettingError(f"seconds of node {node}", seconds, "0 or more, and finite")
        return errand.asked + float(seconds)

    def next(
        self, grid: Grid, at_work: Collection[Errand], timeout: float
    ) -> tuple[Errand, float, Message | None]:
        """Wait for the reply that is the next on this clock, whatever real time it takes."""
        errand = min(at_work, key=lambda e: (e.arrives, e.client))
        return errand, errand.arrives, pulled(grid, errand, timeout)


class RealClock(ReplyClock):
    """Replies arrive as they come; time is that of this process."""

    def __init__(self) -> None:
        self.begin(0.0)

    def begin(self, now: float) -> None:
        """Let time go on from here."""
        self._goes_on = time.monotonic()
        self._began, self._last = self._goes_on - now, now
        self._heard: dict[str, Message] = {}

    def arrival(self, node: int, errand: Errand) -> float:
        """Return inf: the time is not known."""
        return math.inf

    def next(
        self, grid: Grid, at_work: Collection[Errand], timeout: float
    ) -> tuple[Errand, float, Message | None]:
        """Wait for the first reply, or until the oldest question is `timeout` seconds old."""
        in_turn = sorted(at_work, key=lambda e: (e.asked, e.client))
        while True:
            now = time.monotonic()  # before the look: what came while the server was busy counts
            ids = {errand.message_id for errand in in_turn if errand.is_sent}
            # Flower hands a reply out once: who asks again gets an error in its place.
            for reply in grid.pull_messages(sorted(ids - self._heard.keys())):
                self._heard[reply.metadata.reply_to_message_id] = reply
            for errand in in_turn:
                if not errand.is_sent:
                    return errand, self._time(), None
                if errand.message_id in self._heard:
                    return errand, self._time(), self._heard.pop(errand.message_id)
                if now - max(self._goes_on, self._began + errand.asked) > timeout:
                    return errand, self._time(), None
            time.sleep(POLL_SECONDS)

    def _time(self) -> float:
        """Return the seconds since the run began, no two alike."""
        elapsed = time.monotonic() - self._began
        self._last = max(elapsed, math.nextafter(self._last, math.inf))
        return self._last


class JournalClock(ReplyClock):
    """Questions and replies in the order of an earlier run, so that it is repeated.

    Parameters
    ----------
    journal : iterable of mappings
        The run's `journal`: `site`, `round`, `asked`, `arrived`, `end`, in the order of the ends.
    """

    def __init__(self, journal: Iterable[Mapping[str, Any]]) -> None:
        rows = checked(journal)
        self._ends = {(row["site"], row["round"], row["asked"]): row for row in rows}
        self._places = {question: place for place, question in enumerate(self._ends)}
        self._place: int | None = None

    def chosen(
        self, server_round: int, now: float, drawn: Collection[str], free: Collection[str]
    ) -> Collection[str]:
        """Return the sites that the run asked at this time."""
        return [site for site in free if (site, server_round, now) in self._ends]

    def arrival(self, node: int, errand: Errand) -> float:
        """Return the time of the reply."""
        arrived: float = self._end(errand)["arrived"]
        return arrived

    def next(
        self, grid: Grid, at_work: Collection[Errand], timeout: float
    ) -> tuple[Errand, float, Message | None]:
        """Return the question that ended next in that run, with its reply of now."""
        errand = min(at_work, key=lambda e: (e.arrives, e.client))
        place = self._places[errand.client, errand.round, errand.asked]
        if self._place not in (None, place):
            asked = f"the question to {errand.client} of aggregate {errand.round}"
            what = "the journal was edited, or another version made the run"
            raise RunError(f"{asked} ends in another order than in the original run: {what}")
        self._place = place + 1
        end, reply = self._end(errand)["end"], pulled(grid, errand, timeout)
        if end == LOST:
            return errand, errand.arrives, None
        if end == FAILED:
            failure = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "it failed in the run before")
            return errand, errand.arrives, Message(failure, reply_to=errand.message)
        if reply is None or reply.has_error():
            raise RunError(f"{errand.client} replied in the original run, but not in the replay")
        return errand, errand.arrives, reply

    def _end(self, errand: Errand) -> Mapping[str, Any]:
        return self._ends[errand.client, errand.round, errand.asked]


def pulled(grid: Grid, errand: Errand, timeout: float) -> Message | None:
    """Return the reply to a question, which may take real time; None after `timeout` seconds.

    Once there is one, nobody may ask for it again: Flower hands a reply out once.
    """
    deadline = time.monotonic() + (timeout if errand.is_sent else 0)
    while True:
        for reply in grid.pull_messages([errand.message_id] if errand.is_sent else []):
            return reply
        if time.monotonic() > deadline:
            return None
        time.sleep(POLL_SECONDS)


def ended(errand: Errand, arrived: float, reply: Message | None) -> dict[str, Any]:
    """Return a question's line of the journal."""
    end = LOST if reply is None else FAILED if reply.has_error() else REPLIED
    when = {"round": errand.round, "asked": errand.asked, "arrived": arrived}
    return {"site": errand.client, **when, "end": end}


_NOW = "async/now"


class GatheringStrategy(MethodStrategy):
    """A method's strategy that keeps clients at work on a clock, and gathers their replies.

    Parameters and attributes are those of `AsynchronousStrategy`.
    """

    def __init__(
        self,
        *args: Any,
        asynchronous: Asynchronous,
        seconds: Callable[[int, float], float] | None = None,
        journal: Iterable[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        if not isinstance(asynchronous, Asynchronous):
            raise SettingError(
                "asynchronous", asynchronous, "an Asynchronous(), or None for rounds"
            )
        self.method.check_arrivals()
        if self._keeps:
            allowed = "rounds if clients keep their trained models"
            raise SettingError("mode", "async", allowed)
        self.asynchronous = asynchronous
        self.clock = _clock(seconds, journal)
        self.journal: list[dict[str, Any]] = []
        self.staleness: list[int] = []
        self._asked_now: list[int] = []
        self._begin_aggregate()
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Forget an earlier start."""
        self.now = 0.0
        self._at_work: dict[str, Errand] = {}

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state for a resume, with the questions that are out."""
        state = super().state_dict()
        for errand in self._at_work.values():
            state |= written(errand)
        state[_NOW] = torch.tensor(self.now, dtype=torch.float64)
        return state

    def load_state_dict(self, state: Mapping[str, Tensor], completed_rounds: int) -> None:
        """Take a state of `state_dict`, or a method's alone; what was out is asked again."""
        super().load_state_dict(state, completed_rounds)
        self.now = float(state.get(_NOW, 0.0))
        self._at_work = errands(state, self.arrayrecord_key, self.configrecord_key)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages that ask clients to train; refuse wrappers, which drive rounds."""
        if wrapper := driving_wrapper():
            allowed = f"None for {type(wrapper).__name__}, which adds its noise to rounds"
            raise SettingError("asynchronous", self.asynchronous, allowed)
        return super().configure_train(server_round, arrays, config, grid)

    def _require_enough(self, asked: int) -> None:
        """Refuse more needed replies than an aggregate has."""
        if self.min_replies > self.asynchronous.buffer:
            allowed = f"at most {self.asynchronous.buffer}, the replies of an aggregate (buffer)"
            raise SettingError("min_replies", self.min_replies, allowed)

    def _chosen(self, server_round: int) -> list[int]:
        """Return the nodes that are asked now."""
        return self._asked_now

    def _loop(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Make a number of aggregates; arguments and result are those of Flower's `start`."""
        if not self.completed_rounds:
            self._begin_anew()
        result, arrays = Result(), initial_arrays
        train_config = train_config or ConfigRecord()
        evaluate_config = evaluate_config or ConfigRecord()
        score = evaluate_fn or (lambda *_: None)
        if (scores := score(0, arrays)) is not None:
            result.evaluate_metrics_serverapp[0] = scores
        self.clock.begin(self.now)
        self._ask_again(grid)
        for step in range(1, num_rounds + 1):
            found, metrics = self._aggregated(step, arrays, train_config, grid, timeout)
            if found is not None:
                result.arrays = arrays = found
            if metrics is not None:
                result.train_metrics_clientapp[step] = metrics
            questions = self.configure_evaluate(step, arrays, evaluate_config, grid)
            answers = grid.send_and_receive(questions, timeout=timeout)
            if (held_out := self.aggregate_evaluate(step, answers)) is not None:
                result.evaluate_metrics_clientapp[step] = held_out
            if (scores := score(step, arrays)) is not None:
                result.evaluate_metrics_serverapp[step] = scores
        return result

    def _begin_aggregate(self) -> None:
        """Forget the replies of the aggregate before."""
        self.journal = []
        self._lost: list[Errand] = []
        self._arrived: dict[str, Errand] = {}
        self._replies: dict[str, Message] = {}
        self._faults: dict[str, str] = {}
        self._counting: set[str] = set()
        self._is_filled = False

    def _aggregated(
        self, step: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid, timeout: float
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Gather replies until they make an aggregate, or nobody is left who could reply.

        Replies that spoil an aggregate are refused, and further ones take their places.
        """
        self._begin_aggregate()
        self._global_arrays, self._round = arrays, step + self.completed_rounds  # if none is asked
        self._expected = self._reply_like(arrays)
        while True:
            self._is_filled = self._gather(step, arrays, config, grid, timeout)
            answered = [self._arrived[client] for client in self._replies]
            self._gate.ask([errand.message for errand in (*answered, *self._lost)], anew=True)
            found, metrics = self.aggregate_train(step, list(self._replies.values()))
            if found is not None or not self._lacks_replies():
                break
            self._replies = {
                name: self._replies[name] for name in self._sound() if name in self._counting
            }
        self.staleness = [
            self._round - errand.round
            for client, errand in self._arrived.items()
            if client in self._counting
        ]
        self._replies = {}
        return found, metrics

    def _gather(
        self, step: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid, timeout: float
    ) -> bool:
        """Keep clients at work until the buffer is full; return whether it is, or nobody is left.

        Only replies that can be admitted fill it. Each client is asked once for an aggregate. So
        one that fails is asked again after a reply of another, if there is another.
        """
        while len(self._sound()) < self._wanted():
            if free := self._free(step, grid):
                self._asked_now = free
                self._send(list(self.configure_train(step, arrays, config, grid)), grid)
            if not self._at_work and (self._arrived or self._lost):
                return False  # every client that can be asked has replied, or did not in time
            if not self._at_work:
                raise RunError("no client is at work or can be asked")
            errand, self.now, reply = self.clock.next(grid, self._at_work.values(), timeout)
            del self._at_work[errand.client]
            self.journal.append(ended(errand, self.now, reply))
            if reply is None:
                self._lost.append(errand)
                self._gate.unanswered.add(errand.message.metadata.dst_node_id)
            else:
                self._arrive(errand, reply)
        return True

    def _arrive(self, errand: Errand, reply: Message) -> None:
        """Take a reply, and note why it cannot be admitted, if so."""
        if reply.metadata.group_id == errand.message.metadata.group_id:
            reply.metadata.group_id = question(MessageType.TRAIN, self._round)
        self._gate.ask([errand.message])
        (fault,) = self._gate.faults(
            self._round, [reply], self._expected, self._terms(self.train_limit)
        )
        if fault is None and self._name(reply) != errand.client:
            failure = Error(ErrorCode.UNKNOWN, f"its node was {errand.client} when it was asked")
            reply, fault = Message(failure, reply_to=errand.message), failure.reason
        self._arrived[errand.client], self._replies[errand.client] = errand, reply
        if fault is not None:
            self._faults[errand.client] = fault
        else:
            self._compare(errand.client)

    def _compare(self, client: str) -> None:
        """Note faults that show only beside other replies, after that of a client."""

    def _sound(self) -> list[str]:
        """Return the clients whose replies may be admitted, in the order of arrival."""
        return [client for client in self._replies if client not in self._faults]

    def _wanted(self) -> int:
        """Return the number of replies that make an aggregate."""
        return self.asynchronous.buffer

    def _lacks_replies(self) -> bool:
        """Return whether replies of a full buffer were refused; others take their places."""
        return self._is_filled and self._counting != {*self._sound()}

    def _aggregate_admitted(
        self, server_round: int, admitted: list[Message], reference: ArrayRecord
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate admitted replies, and note whose they are; none while some are lacking."""
        self._counting = {self._name(reply) for reply in admitted}
        if self._lacks_replies():
            return None, MetricRecord({SKIPPED_KEY: 1})
        return super()._aggregate_admitted(server_round, admitted, reference)

    def _free(self, step: int, grid: Grid) -> list[int]:
        """Return the nodes that are asked now, drawn from those that are free."""
        server_round = step + self.completed_rounds
        nodes = self.choose_nodes(server_round) if self.choose_nodes else grid.get_node_ids()
        there, busy = sorted(nodes), self._at_work.keys() | self._arrived.keys()
        busy |= {errand.client for errand in self._lost}
        free = {self._named(node): node for node in there if self._named(node) not in busy}
        wanted = (self.asynchronous.concurrency or len(there)) - len(self._at_work)
        purpose = derive_seed(self._seed, "errands", server_round, len(self._arrived))
        drawn = Random(purpose).sample(sorted(free), max(0, min(wanted, len(free))))
        names = self.clock.chosen(server_round, self.now, drawn, free)
        return [free[name] for name in sorted(names)]

    def _send(self, messages: list[Message], grid: Grid) -> None:
        """Push messages, and note when their replies arrive."""
        for message, message_id in zip(messages, pushed(grid, messages), strict=True):
            node = message.metadata.dst_node_id
            errand = Errand(self._named(node), self._round, self.now, message, message_id)
            arrives = self.clock.arrival(node, errand)
            self._at_work[errand.client] = replace(errand, arrives=arrives)

    def _ask_again(self, grid: Grid) -> None:
        """Push the questions that were out when the run was cut off."""
        nodes = {self._named(node): node for node in grid.get_node_ids()}
        again = {c: e.to(nodes[c]) for c, e in self._at_work.items() if c in nodes}
        ids = pushed(grid, [errand.message for errand in again.values()])
        pairs = zip(again.values(), ids, strict=True)
        self._at_work = {e.client: e.pushed(message_id) for e, message_id in pairs}


def _clock(
    seconds: Callable[[int, float], float] | None, journal: Iterable[Mapping[str, Any]] | None
) -> ReplyClock:
    if journal is not None:
        return JournalClock(journal)
    return RealClock() if seconds is None else VirtualClock(seconds)


_DISTANCES, _WEIGHTS = "async/distances/", "async/weight/"


class AsynchronousStrategy(GatheringStrategy):
    """A method's strategy on a clock, real or virtual, without rounds.

    A method's strategy that is given `asynchronous` is one: `RKLB(asynchronous=Asynchronous())`.
    Whenever fewer than `concurrency` clients are at work, the seed draws a free one. A client whose
    reply waits for its aggregate is not free, nor one that has failed in this aggregate: by an
    error, by a reply that is refused, or by none in time. Each aggregate takes `buffer` replies
    that are admitted, or fewer if nobody else can be asked. It is skipped only if all have failed.

    A reply's distance from what was sent is compared with the newest distances of all clients, and
    with `max_weight_ratio` its weight with their newest weights. The first aggregate of a run waits
    for three replies, so that they can be compared with each other.

    Parameters
    ----------
    *args, **kwargs
        Those of the method's strategy.
    asynchronous : Asynchronous
        Number of clients at work, and the weights of their replies.
    seconds : callable, optional
        Takes a node's id and the virtual time, and returns the seconds until the reply to a
        question asked then. Replies arrive in the order of this clock, at any real speed. None:
        they arrive as they come, in real time.
    journal : iterable of mappings, optional
        The `journal` of all aggregates of an earlier run, which is repeated in its order.

    Raises
    ------
    SettingError
        If the method needs the replies of a round, or its clients keep their models.

    Attributes
    ----------
    now : float
        Seconds on the clock, when the last reply arrived.
    staleness : list of int
        Staleness of the replies of the last aggregate, in aggregates, in the order of arrival.
    journal : list of dict
        The questions that ended in the last aggregate, in the order of their end: `site`, `round`
        and `asked`, when it was asked; `arrived`; `end`: replied, failed, lost.
    """

    def _begin_anew(self) -> None:
        """Forget an earlier start."""
        super()._begin_anew()
        self._distances: dict[str, tuple[float, ...]] = {}
        self._weights: dict[str, float] = {}

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state for a resume, with what the next replies are compared with."""
        state = super().state_dict()
        for client, distances in self._distances.items():
            state[_DISTANCES + client] = torch.tensor(distances, dtype=torch.float64)
        for client, weight in self._weights.items():
            state[_WEIGHTS + client] = torch.tensor(weight, dtype=torch.float64)
        return state

    def load_state_dict(self, state: Mapping[str, Tensor], completed_rounds: int) -> None:
        """Take a state of `state_dict`, or a method's alone."""
        super().load_state_dict(state, completed_rounds)
        held = under(_DISTANCES, state)
        self._distances = {client: tuple(each.tolist()) for client, each in held.items()}
        self._weights = {client: float(each) for client, each in under(_WEIGHTS, state).items()}

    def _others(self) -> list[float]:
        """Return the newest weights of the clients whose replies are not in this aggregate."""
        counting = self._sound()
        return [weight for name, weight in self._weights.items() if name not in counting]

    def _wanted(self) -> int:
        """Return the number of replies that make an aggregate; in the first they are compared."""
        return super()._wanted() if self._distances else max(super()._wanted(), LEAST)

    def _compare(self, client: str) -> None:
        """Note whose replies lie far from what was sent, once that can be said.

        A reply is compared with the newest of all clients, so that none sets the measure alone.
        Until there are two of these, the replies of the aggregate are compared with each other.
        """
        sound, known = self._sound(), list(self._distances.values())
        if self._withstands(len(sound)):
            return
        together = len(known) < LEAST - 1
        moved = {each: self._moved(each) for each in (sound if together else [client])}
        if len(known) + len(moved) < LEAST:
            return
        for each in moved:
            others = [*known, *(moved[other] for other in moved if other != each)]
            if said := self._too_far(each, others):
                self._faults[each] = said

    def _aggregate_admitted(
        self, server_round: int, admitted: list[Message], reference: ArrayRecord
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Refuse the replies that were found to lie far."""
        reasons = [self._faults.get(self._name(reply)) for reply in admitted]
        if any(reasons):
            admitted = self._gate.admitted(server_round, admitted, reasons, self.weighted_by_key)
        return super()._aggregate_admitted(server_round, admitted, reference)

    def _commit(
        self, reference: ArrayRecord, aggregate: ArrayRecord, admitted: Sequence[Message]
    ) -> ArrayRecord:
        """Keep the strategy's state, and the replies' distances and weights."""
        self._distances |= {name: self._moved(name) for name in map(self._name, admitted)}
        self._weights |= {self._name(r): weight_of(r, self.weighted_by_key) for r in admitted}
        return super()._commit(reference, aggregate, admitted)

    def _moved(self, client: str) -> tuple[float, ...]:
        """Return the distances of a reply's weights and of its other arrays from the sent ones."""
        arrays, like, kinds = self._compared(client)
        return tuple(distance(arrays, like, keys) for keys in kinds)

    def _too_far(self, client: str, others: Sequence[tuple[float, ...]]) -> str | None:
        arrays, like, kinds = self._compared(client)
        pairs = zip(kinds, zip(*others, strict=True), strict=True)
        return too_far(*(farness([arrays], like, *pair)[0] for pair in pairs))

    def _compared(self, client: str) -> tuple[ArrayRecord, ArrayRecord, list[set[str]]]:
        """Return a reply's arrays, those to compare with, and the keys of weights and of others."""
        assert self._global_arrays is not None
        sent = self._arrived[client].message.content.array_records[self.arrayrecord_key]
        like = ArrayRecord({key: sent.get(key, array) for key, array in self._expected.items()})
        model = self._global_arrays.keys()
        scales = set(self.convention.pairs(model).values())
        weights = (like.keys() & model) - scales
        return arrays_of(self._replies[client]), like, [weights, like.keys() - weights]

    def _made(self, server: Server, replies: Sequence[Reply]) -> tuple[Tensors, Tensors]:
        """Return the method's aggregate of replies, given what each client was sent."""
        return self.method.arrive(server, list(self._arrivals(server, replies)))

    def _arrivals(self, server: Server, replies: Sequence[Reply]) -> Iterator[Arrival]:
        mode = self.asynchronous
        there = max(server.clients, len(replies))
        at_work = min(mode.concurrency or there, there)
        own = [reply.weight for reply in replies]
        of_mean_client = fmean(own)
        if self.max_weight_ratio is not None:
            newest = [*own, *self._others()]
            of_mean_client = fmean(at_most(newest, self.max_weight_ratio, newest))
        elif server.examples and server.clients:
            of_mean_client = server.examples / server.clients
        errands_of = [self._arrived[reply.client] for reply in replies]
        counts = [mode.weight(self._round - errand.round, at_work) for errand in errands_of]
        parts = parts_of([reply.weight / (at_work * of_mean_client) for reply in replies], counts)
        for reply, errand, *own in zip(replies, errands_of, parts, counts, strict=True):
            sent = self._read(errand.message.content.array_records[self.arrayrecord_key])
            yield Arrival(reply.client, reply.weight, reply.tensors, sent, own[0], at_work, own[1])

    def _read(self, record: ArrayRecord) -> Tensors:
        """Return the arrays that a client was sent, the model in fedbary's names."""
        assert self._global_arrays is not None
        keys = self._global_arrays.keys()
        more = {k: tensor_from_array(array) for k, array in record.items() if k not in keys}
        return {**Names(keys, self.convention).read(record), **more}


@cache
def without_rounds(kind: type[Any]) -> type[Any]:
    """Return the class of a method's strategy that does not wait, the same one at every call."""
    if issubclass(kind, AsynchronousStrategy):
        return kind
    members = {"__module__": __name__, "__doc__": kind.__doc__}
    return type(f"Asynchronous{kind.__name__}", (kind, AsynchronousStrategy), members)
