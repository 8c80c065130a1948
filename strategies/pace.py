"""When a server aggregates: after each of Flower's rounds, or as replies arrive."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import fmean
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result
from torch import Tensor

from fedbary.aggregation.arriving import parts_of
from fedbary.aggregation.sums import select_prefix
from fedbary.errors import RunError, SettingError
from fedbary.methods import Arrival, Method, Reply, Server, Tensors
from fedbary.seeds import derive_seed
from fedbary.settings.modes import Asynchronous

from .admission import Admission, Form
from .arrays import tensor_from_array
from .clocks import Errand, ReplyClock, ended, errands, pushed, written
from .conventions import names_of
from .federation import question
from .gate import LEAST, arrays_of, at_most, distance, farness, too_far
from .internals import ErrorCode
from .privacy import driving_wrapper


@dataclass(frozen=True, eq=False)
class Start:
    """The arguments of a strategy's `start`, which are those of Flower's."""

    grid: Grid
    initial_arrays: ArrayRecord
    num_rounds: int
    timeout: float
    train_config: ConfigRecord
    evaluate_config: ConfigRecord
    evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None


SETTLED_SECONDS = 0.5
"""Seconds in which a further node registers while a simulation starts."""


def settled(grid: Grid) -> int:
    """Return the number of nodes, after further ones may have registered."""
    time.sleep(SETTLED_SECONDS)
    return len([*grid.get_node_ids()])


class Pace:
    """Flower's rounds: the server asks, and waits for the replies.

    Parameters
    ----------
    admission : Admission
        The strategy's.
    """

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def run(self, strategy: FedAvg, start: Start) -> Result:
        """Make the rounds of a strategy."""
        return FedAvg.start(strategy, **vars(start))

    def trainers(self, server_round: int) -> list[int] | None:
        """Return the nodes that are asked to train; None if Flower samples them."""
        choose = self._admission.federation.trainers
        return None if choose is None else choose(server_round)

    def require_enough(self, asked: int) -> None:
        """Refuse more needed replies than Flower asks clients; chosen nodes may come later."""
        needed = self._admission.min_replies
        if self._admission.federation.trainers is None and asked < needed:
            allowed = f"at most {asked}, the clients that are asked in a round"
            raise SettingError("min_replies", needed, allowed)

    def other_weights(self) -> Sequence[float]:
        """Return weights of earlier replies, with which those of this round are compared too."""
        return ()

    def accept(self, server_round: int, admitted: list[Message]) -> list[Message] | None:
        """Return the sound replies that may count; None if others must come first."""
        return admitted

    def aggregate(
        self, method: Method, server: Server, replies: Sequence[Reply]
    ) -> tuple[Tensors, Tensors]:
        """Return a method's model and state after replies."""
        return method.aggregate(server, replies)

    def commit(self, admitted: Sequence[Message]) -> None:
        """Take the replies of an aggregate that counts."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state for a resume."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor], keys: tuple[str, str]) -> None:
        """Take a state of `state_dict`; `keys` are those of a message's arrays and config."""


_NOW, _DISTANCES, _WEIGHTS = "async/now", "async/distances/", "async/weight/"


class Arrivals(Pace):
    """No rounds: clients are kept at work on a clock, real or virtual, and replies aggregated.

    Whenever fewer than `concurrency` clients are at work, the seed draws a free one. A client whose
    reply waits for its aggregate is not free, nor one that has failed in this aggregate: by an
    error, by a reply that is refused, or by none in time. Each aggregate takes `buffer` replies
    that are admitted, or fewer if nobody else can be asked. It is skipped only if all have failed.

    A reply's distance from what was sent is compared with the newest distances of all clients, and
    with `max_weight_ratio` its weight with their newest weights. The first aggregate of a run waits
    for three replies, so that they can be compared with each other.

    Parameters
    ----------
    admission : Admission
        The strategy's.
    asynchronous : Asynchronous
        Number of clients at work, and the weights of their replies.
    clock : ReplyClock
        Says which reply arrives next.
    form_of : callable
        Takes the global arrays, and returns what replies are compared with.
    seed : int
        Seed of the choice of clients.

    Raises
    ------
    SettingError
        If `asynchronous` is of another type.

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

    def __init__(
        self,
        admission: Admission,
        asynchronous: Asynchronous,
        clock: ReplyClock,
        form_of: Callable[[ArrayRecord], Form],
        seed: int,
    ) -> None:
        super().__init__(admission)
        if not isinstance(asynchronous, Asynchronous):
            allowed = "an Asynchronous(), or None for rounds"
            raise SettingError("asynchronous", asynchronous, allowed)
        self.asynchronous, self.clock = asynchronous, clock
        self._form_of, self._seed = form_of, seed
        self.staleness: list[int] = []
        self._asked_now: list[int] = []
        self._begin_aggregate(Form(ArrayRecord(), ArrayRecord(), admission.convention), 0)
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Forget an earlier start."""
        self.now = 0.0
        self._at_work: dict[str, Errand] = {}
        self._distances: dict[str, tuple[float, ...]] = {}
        self._weights: dict[str, float] = {}

    def _begin_aggregate(self, form: Form, server_round: int) -> None:
        """Forget the replies of the aggregate before."""
        self._form, self._round = form, server_round
        self.journal: list[dict[str, Any]] = []
        self._lost: list[Errand] = []
        self._arrived: dict[str, Errand] = {}
        self._replies: dict[str, Message] = {}
        self._faults: dict[str, str] = {}
        self._counting: set[str] = set()
        self._is_filled = False

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state for a resume: what is out, and what next replies are compared with."""
        state: dict[str, Tensor] = {}
        for errand in self._at_work.values():
            state |= written(errand)
        state[_NOW] = torch.tensor(self.now, dtype=torch.float64)
        for client, distances in self._distances.items():
            state[_DISTANCES + client] = torch.tensor(distances, dtype=torch.float64)
        for client, weight in self._weights.items():
            state[_WEIGHTS + client] = torch.tensor(weight, dtype=torch.float64)
        return state

    def load_state_dict(self, state: Mapping[str, Tensor], keys: tuple[str, str]) -> None:
        """Take a state of `state_dict`, or none; what was out is asked again."""
        self.now = float(state.get(_NOW, 0.0))
        self._at_work = errands(state, *keys)
        held = select_prefix(_DISTANCES, state)
        self._distances = {client: tuple(each.tolist()) for client, each in held.items()}
        self._weights = {
            client: float(each) for client, each in select_prefix(_WEIGHTS, state).items()
        }

    def run(self, strategy: FedAvg, start: Start) -> Result:
        """Make a number of aggregates."""
        if not self._admission.completed_rounds:
            self._begin_anew()
        result, arrays, grid = Result(), start.initial_arrays, start.grid
        score = start.evaluate_fn or (lambda *_: None)
        if (scores := score(0, arrays)) is not None:
            result.evaluate_metrics_serverapp[0] = scores
        self.clock.begin(self.now)
        self._ask_again(grid)
        for step in range(1, start.num_rounds + 1):
            found, metrics = self._aggregated(strategy, start, step, arrays)
            if found is not None:
                result.arrays = arrays = found
            if metrics is not None:
                result.train_metrics_clientapp[step] = metrics
            questions = strategy.configure_evaluate(step, arrays, start.evaluate_config, grid)
            answers = grid.send_and_receive(questions, timeout=start.timeout)
            if (held_out := strategy.aggregate_evaluate(step, answers)) is not None:
                result.evaluate_metrics_clientapp[step] = held_out
            if (scores := score(step, arrays)) is not None:
                result.evaluate_metrics_serverapp[step] = scores
        return result

    def trainers(self, server_round: int) -> list[int]:
        """Return the nodes that are asked now; refuse wrappers, which drive rounds."""
        if wrapper := driving_wrapper():
            allowed = f"None for {type(wrapper).__name__}, which adds its noise to rounds"
            raise SettingError("asynchronous", self.asynchronous, allowed)
        return self._asked_now

    def require_enough(self, asked: int) -> None:
        """Refuse more needed replies than an aggregate has."""
        if (needed := self._admission.min_replies) > self.asynchronous.buffer:
            allowed = f"at most {self.asynchronous.buffer}, the replies of an aggregate (buffer)"
            raise SettingError("min_replies", needed, allowed)

    def other_weights(self) -> list[float]:
        """Return the newest weights of the clients whose replies are not in this aggregate."""
        counting = self._sound()
        return [weight for name, weight in self._weights.items() if name not in counting]

    def accept(self, server_round: int, admitted: list[Message]) -> list[Message] | None:
        """Refuse the replies that lie far; return the others, and none while some are lacking."""
        client = self._admission.client
        reasons = [self._faults.get(client(reply)) for reply in admitted]
        if any(reasons):
            admitted = self._admission.admitted(server_round, admitted, reasons)
        self._counting = {client(reply) for reply in admitted}
        return None if self._lacks_replies() else admitted

    def aggregate(
        self, method: Method, server: Server, replies: Sequence[Reply]
    ) -> tuple[Tensors, Tensors]:
        """Return a method's model and state after replies, given what each client was sent."""
        return method.arrive(server, list(self._arrivals(server, replies)))

    def commit(self, admitted: Sequence[Message]) -> None:
        """Keep the distances and weights of replies that count."""
        names = list(map(self._admission.client, admitted))
        self._distances |= {name: self._moved(name) for name in names}
        self._weights |= dict(zip(names, map(self._admission.weight, admitted), strict=True))

    def _aggregated(
        self, strategy: FedAvg, start: Start, step: int, arrays: ArrayRecord
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Gather replies until they make an aggregate, or nobody is left who could reply.

        Replies that spoil an aggregate are refused, and further ones take their places.
        """
        self._admission.send(step, arrays)  # if none is asked
        self._begin_aggregate(self._form_of(arrays), self._admission.round)
        while True:
            self._is_filled = self._gather(strategy, start, step, arrays)
            answered = [self._arrived[client] for client in self._replies]
            messages = [errand.message for errand in (*answered, *self._lost)]
            self._admission.ask(messages, anew=True)
            found, metrics = strategy.aggregate_train(step, list(self._replies.values()))
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

    def _gather(self, strategy: FedAvg, start: Start, step: int, arrays: ArrayRecord) -> bool:
        """Keep clients at work until the buffer is full; return whether it is, or nobody is left.

        Only replies that can be admitted fill it. Each client is asked once for an aggregate. So
        one that fails is asked again after a reply of another, if there is another.
        """
        grid, buffer = start.grid, self.asynchronous.buffer
        wanted = buffer if self._distances else max(buffer, LEAST)  # the first are compared
        while len(self._sound()) < wanted:
            if free := self._free(grid):
                self._asked_now = free
                messages = strategy.configure_train(step, arrays, start.train_config, grid)
                self._send(list(messages), grid)
            if not self._at_work and (self._arrived or self._lost):
                return False  # every client that can be asked has replied, or did not in time
            if not self._at_work:
                raise RunError("no client is at work or can be asked")
            errand, self.now, reply = self.clock.next(grid, self._at_work.values(), start.timeout)
            del self._at_work[errand.client]
            self.journal.append(ended(errand, self.now, reply))
            if reply is None:
                self._lost.append(errand)
                self._admission.unanswered.add(errand.message.metadata.dst_node_id)
            else:
                self._arrive(errand, reply)
        return True

    def _free(self, grid: Grid) -> list[int]:
        """Return the nodes that are asked now, drawn from those that are free."""
        federation = self._admission.federation
        nodes = federation.trainers(self._round) if federation.trainers else grid.get_node_ids()
        there, busy = sorted(nodes), self._at_work.keys() | self._arrived.keys()
        busy |= {errand.client for errand in self._lost}
        names = {node: federation.client(node) for node in there}
        free = {name: node for node, name in names.items() if name not in busy}
        wanted = (self.asynchronous.concurrency or len(there)) - len(self._at_work)
        purpose = derive_seed(self._seed, "errands", self._round, len(self._arrived))
        drawn = Random(purpose).sample(sorted(free), max(0, min(wanted, len(free))))
        chosen = self.clock.chosen(self._round, self.now, drawn, free)
        return [free[name] for name in sorted(chosen)]

    def _send(self, messages: list[Message], grid: Grid) -> None:
        """Push messages, and note when their replies arrive."""
        for message, message_id in zip(messages, pushed(grid, messages), strict=True):
            node = message.metadata.dst_node_id
            client = self._admission.federation.client(node)
            errand = Errand(client, self._round, self.now, message, message_id)
            arrives = self.clock.arrival(node, errand)
            self._at_work[errand.client] = replace(errand, arrives=arrives)

    def _ask_again(self, grid: Grid) -> None:
        """Push the questions that were out when the run was cut off."""
        nodes = {self._admission.federation.client(node): node for node in grid.get_node_ids()}
        again = {c: e.to(nodes[c]) for c, e in self._at_work.items() if c in nodes}
        ids = pushed(grid, [errand.message for errand in again.values()])
        pairs = zip(again.values(), ids, strict=True)
        self._at_work = {e.client: e.pushed(message_id) for e, message_id in pairs}

    def _arrive(self, errand: Errand, reply: Message) -> None:
        """Take a reply, and note why it cannot be admitted, if so."""
        if reply.metadata.group_id == errand.message.metadata.group_id:
            reply.metadata.group_id = question(MessageType.TRAIN, self._round)
        self._admission.ask([errand.message])
        (fault,) = self._admission.faults(self._round, [reply], self._form)
        if fault is None and self._admission.client(reply) != errand.client:
            failure = Error(ErrorCode.UNKNOWN, f"its node was {errand.client} when it was asked")
            reply, fault = Message(failure, reply_to=errand.message), failure.reason
        self._arrived[errand.client], self._replies[errand.client] = errand, reply
        if fault is not None:
            self._faults[errand.client] = fault
        else:
            self._compare(errand.client)

    def _sound(self) -> list[str]:
        """Return the clients whose replies may be admitted, in the order of arrival."""
        return [client for client in self._replies if client not in self._faults]

    def _lacks_replies(self) -> bool:
        """Return whether replies of a full buffer were refused; others take their places."""
        return self._is_filled and self._counting != {*self._sound()}

    def _compare(self, client: str) -> None:
        """Note whose replies lie far from what was sent, once that can be said.

        A reply is compared with the newest of all clients, so that none sets the measure alone.
        Until there are two of these, the replies of the aggregate are compared with each other.
        """
        sound, known = self._sound(), list(self._distances.values())
        if self._admission.withstands(len(sound)):
            return
        together = len(known) < LEAST - 1
        moved = {each: self._moved(each) for each in (sound if together else [client])}
        if len(known) + len(moved) < LEAST:
            return
        for each in moved:
            others = [*known, *(moved[other] for other in moved if other != each)]
            arrays, form = self._compared(each)
            pairs = zip(form.kinds, zip(*others, strict=True), strict=True)
            if said := too_far(*(farness([arrays], form.like, *pair)[0] for pair in pairs)):
                self._faults[each] = said

    def _moved(self, client: str) -> tuple[float, ...]:
        """Return the distances of a reply's weights and of its other arrays from the sent ones."""
        arrays, form = self._compared(client)
        return tuple(distance(arrays, form.like, keys) for keys in form.kinds)

    def _compared(self, client: str) -> tuple[ArrayRecord, Form]:
        """Return a reply's arrays, and what to compare them with: what its client was sent."""
        sent, like = arrays_of(self._arrived[client].message), self._form.like
        own = ArrayRecord({key: sent.get(key, array) for key, array in like.items()})
        return arrays_of(self._replies[client]), replace(self._form, like=own)

    def _arrivals(self, server: Server, replies: Sequence[Reply]) -> Iterator[Arrival]:
        mode, ratio = self.asynchronous, self._admission.max_weight_ratio
        there = max(server.clients, len(replies))
        at_work = min(mode.concurrency or there, there)
        own = [reply.weight for reply in replies]
        of_mean_client = fmean(own)
        if ratio is not None:
            newest = [*own, *self.other_weights()]
            of_mean_client = fmean(at_most(newest, ratio, newest))
        elif server.examples and server.clients:
            of_mean_client = server.examples / server.clients
        errands_of = [self._arrived[reply.client] for reply in replies]
        counts = [mode.weight(self._round - errand.round, at_work) for errand in errands_of]
        parts = parts_of([reply.weight / (at_work * of_mean_client) for reply in replies], counts)
        for reply, errand, part, count in zip(replies, errands_of, parts, counts, strict=True):
            sent = self._read(arrays_of(errand.message))
            yield Arrival(reply.client, reply.weight, reply.tensors, sent, part, at_work, count)

    def _read(self, record: ArrayRecord) -> Tensors:
        """Return the arrays that a client was sent, the model in fedbary's names."""
        keys = self._form.sent.keys()
        more = {k: tensor_from_array(array) for k, array in record.items() if k not in keys}
        return {**names_of(keys, self._admission.convention).read(record), **more}
