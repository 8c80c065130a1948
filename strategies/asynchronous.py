"""A strategy whose server does not wait: it aggregates whenever enough replies have arrived.

Messages, admission and state are those of the method's strategy. Only the loop differs:
`GatedStrategy._loop` is replaced. A "round" here is one aggregate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from torch import Tensor

from fedbary.aggregation.arriving import parts_of
from fedbary.errors import RunError, SettingError
from fedbary.methods import Arrival, Reply, Server, Tensors
from fedbary.seeds import derive_seed
from fedbary.settings.modes import Asynchronous

from .admission import arrays_of
from .arrays import tensor_from_array
from .asking import question
from .clocks import JournalClock, RealClock, ReplyClock, VirtualClock, ended
from .distances import LEAST, distance, farness, too_far
from .errand import Errand, errands, written
from .method_strategy import MethodStrategy
from .names import Names

RECENT = 20
"""Number of earlier admitted replies that a single reply is compared with."""

_NOW, _RECENT = "async/now", "async/recent"


class AsynchronousStrategy(MethodStrategy):
    """A method's strategy on a clock, real or virtual, without rounds.

    A method's strategy that is given `asynchronous` is one: `RKLB(asynchronous=Asynchronous())`.
    Whenever fewer than `concurrency` clients are at work, the seed draws a free one. A client whose
    reply waits for its aggregate is not free. Each aggregate takes `buffer` replies.

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

    def __init__(
        self,
        *args: Any,
        asynchronous: Asynchronous,
        seconds: Callable[[int, float], float] | None = None,
        journal: Iterable[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.method.check_arrivals()
        if self._keeps:
            allowed = "rounds if clients keep their trained models"
            raise SettingError("mode", "async", allowed)
        self.asynchronous = asynchronous
        self.clock = _clock(seconds, journal)
        self.now = 0.0
        self.journal: list[dict[str, Any]] = []
        self.staleness: list[int] = []
        self._there = self.choose_nodes
        self.choose_nodes = lambda server_round: self._asked_now
        self._asked_now: list[int] = []
        self._at_work: dict[str, Errand] = {}
        self._arrived: dict[str, Errand] = {}
        self._recent: list[tuple[float, ...]] = []

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state for a resume, with the questions that are out."""
        state = super().state_dict()
        for errand in self._at_work.values():
            state |= written(errand)
        state[_NOW] = torch.tensor(self.now, dtype=torch.float64)
        state[_RECENT] = torch.tensor(self._recent, dtype=torch.float64)
        return state

    def load_state_dict(self, state: Mapping[str, Tensor], completed_rounds: int) -> None:
        """Take a state of `state_dict`, or a method's alone; what was out is asked again."""
        super().load_state_dict(state, completed_rounds)
        self.now = float(state.get(_NOW, 0.0))
        self._recent = [tuple(pair) for pair in state.get(_RECENT, torch.zeros(0, 2)).tolist()]
        self._at_work = errands(state, self.arrayrecord_key, self.configrecord_key)

    def _go_back(
        self, server_round: int, replies: Sequence[Message]
    ) -> tuple[ArrayRecord, MetricRecord]:
        """Undo an aggregate; the clock and the questions that are out stay."""
        now, at_work = self.now, self._at_work
        found = super()._go_back(server_round, replies)
        self.now, self._at_work = now, at_work
        return found

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
        result, arrays = Result(), initial_arrays
        train_config = train_config or ConfigRecord()
        evaluate_config = evaluate_config or ConfigRecord()
        score = evaluate_fn or (lambda *_: None)
        if (scores := score(0, arrays)) is not None:
            result.evaluate_metrics_serverapp[0] = scores
        self.clock.begin(self.now)
        self._ask_again(grid)
        for step in range(1, num_rounds + 1):
            replies = self._gathered(step, arrays, train_config, grid, timeout)
            found, metrics = self.aggregate_train(step, replies)
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

    def _gathered(
        self, step: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid, timeout: float
    ) -> list[Message]:
        """Keep clients at work until the buffer is full, or none is left; return its replies."""
        self._arrived, lost, replies = {}, list[Message](), list[Message]()
        self.journal = []
        self._global_arrays, self._round = arrays, step + self.completed_rounds  # if none is asked
        while len(replies) < self.asynchronous.buffer:
            if free := self._free(step, grid):
                self._asked_now = free
                self._send(list(self.configure_train(step, arrays, config, grid)), grid)
            if not self._at_work and replies:
                break  # every client that can be asked has replied
            if not self._at_work:
                raise RunError("no client is at work or can be asked")
            errand, self.now, reply = self.clock.next(grid, self._at_work.values(), timeout)
            del self._at_work[errand.client]
            self.journal.append(ended(errand, self.now, reply))
            if reply is None:
                lost.append(errand.message)
                self._gate.unanswered.add(errand.message.metadata.dst_node_id)
                continue
            self._arrived[errand.client] = errand
            if reply.metadata.group_id == errand.message.metadata.group_id:
                server_round = step + self.completed_rounds
                reply.metadata.group_id = question(MessageType.TRAIN, server_round)
            replies.append(reply)
        self.staleness = [
            step + self.completed_rounds - errand.round for errand in self._arrived.values()
        ]
        self._gate.ask([*(e.message for e in self._arrived.values()), *lost], anew=True)
        return replies

    def _free(self, step: int, grid: Grid) -> list[int]:
        """Return the nodes that are asked now, drawn from those that are free."""
        server_round = step + self.completed_rounds
        there = self._there(server_round) if self._there else sorted(grid.get_node_ids())
        busy = self._at_work.keys() | self._arrived.keys()
        free = {self._named(node): node for node in there if self._named(node) not in busy}
        wanted = (self.asynchronous.concurrency or len(there)) - len(self._at_work)
        purpose = derive_seed(self._seed, "errands", server_round, len(self._arrived))
        drawn = Random(purpose).sample(sorted(free), max(0, min(wanted, len(free))))
        names = self.clock.chosen(server_round, self.now, drawn, free)
        return [free[name] for name in sorted(names)]

    def _send(self, messages: list[Message], grid: Grid) -> None:
        """Push messages, and note when their replies arrive."""
        ids = list(grid.push_messages(messages))
        for message, message_id in zip(messages, ids, strict=True):
            node = message.metadata.dst_node_id
            errand = Errand(self._named(node), self._round, self.now, message, message_id)
            arrives = self.clock.arrival(node, errand)
            self._at_work[errand.client] = replace(errand, arrives=arrives)

    def _ask_again(self, grid: Grid) -> None:
        """Push the questions that were out when the run was cut off."""
        nodes = {self._named(node): node for node in grid.get_node_ids()}
        again = {c: e.to(nodes[c]) for c, e in self._at_work.items() if c in nodes}
        ids = list(grid.push_messages([errand.message for errand in again.values()]))
        pairs = zip(again.values(), ids, strict=True)
        self._at_work = {e.client: e.pushed(message_id) for e, message_id in pairs}

    def _aggregate_admitted(
        self, server_round: int, admitted: list[Message], reference: ArrayRecord
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Refuse replies that lie far from what was sent, beside those of the latest aggregates."""
        if len(self._recent) >= LEAST - 1 and not self._withstands(len(admitted)):
            reasons = [self._too_far(reply) for reply in admitted]
            admitted = self._gate.admitted(server_round, admitted, reasons, self.weighted_by_key)
        return super()._aggregate_admitted(server_round, admitted, reference)

    def _commit(
        self, reference: ArrayRecord, aggregate: ArrayRecord, admitted: Sequence[Message]
    ) -> ArrayRecord:
        """Keep the strategy's state, and the replies' distances."""
        self._recent = [*self._recent, *map(self._distances, admitted)][-RECENT:]
        return super()._commit(reference, aggregate, admitted)

    def _distances(self, reply: Message) -> tuple[float, ...]:
        """Return the distances of a reply's weights and of its other arrays from the sent ones."""
        like, kinds = self._compared(reply)
        return tuple(distance(arrays_of(reply), like, keys) for keys in kinds)

    def _too_far(self, reply: Message) -> str | None:
        like, kinds = self._compared(reply)
        pairs = zip(kinds, zip(*self._recent, strict=True), strict=True)
        return too_far(*(farness([arrays_of(reply)], like, *pair)[0] for pair in pairs))

    def _compared(self, reply: Message) -> tuple[ArrayRecord, list[set[str]]]:
        """Return the arrays to compare a reply with, and the keys of weights and of others."""
        assert self._global_arrays is not None
        errand = self._arrived[self._name(reply)]
        sent = errand.message.content.array_records[self.arrayrecord_key]
        expected, model = self._reply_like(self._global_arrays), self._global_arrays.keys()
        like = ArrayRecord({key: sent.get(key, array) for key, array in expected.items()})
        scales = set(self.convention.pairs(model).values())
        weights = (expected.keys() & model) - scales
        return like, [weights, expected.keys() - weights]

    def _made(self, server: Server, replies: Sequence[Reply]) -> tuple[Tensors, Tensors]:
        """Return the method's aggregate of replies, given what each client was sent."""
        return self.method.arrive(server, list(self._arrivals(server, replies)))

    def _arrivals(self, server: Server, replies: Sequence[Reply]) -> Iterator[Arrival]:
        mode = self.asynchronous
        at_work = mode.concurrency or max(server.clients, len(replies))
        of_mean_client = sum(reply.weight for reply in replies) / len(replies)
        if server.examples and server.clients:
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


def _clock(
    seconds: Callable[[int, float], float] | None, journal: Iterable[Mapping[str, Any]] | None
) -> ReplyClock:
    if journal is not None:
        return JournalClock(journal)
    return RealClock() if seconds is None else VirtualClock(seconds)


@cache
def without_rounds(kind: type[Any]) -> type[Any]:
    """Return the class of a method's strategy that does not wait, the same one at every call."""
    if issubclass(kind, AsynchronousStrategy):
        return kind
    members = {"__module__": __name__, "__doc__": kind.__doc__}
    return type(f"Asynchronous{kind.__name__}", (AsynchronousStrategy, kind), members)
