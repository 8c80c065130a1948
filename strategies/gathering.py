"""The loop of a strategy whose server does not wait: whom it asks, and what makes an aggregate.

Messages, admission and state are those of the method's strategy. Only the loop differs:
`GatedStrategy._loop` is replaced. A "round" here is one aggregate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from random import Random
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from torch import Tensor

from fedbary.errors import RunError, SettingError
from fedbary.seeds import derive_seed
from fedbary.settings.modes import Asynchronous

from .asking import question
from .clocks import JournalClock, RealClock, ReplyClock, VirtualClock, ended
from .errand import Errand, errands, pushed, written
from .gated import SKIPPED_KEY
from .internals import ErrorCode
from .method_strategy import MethodStrategy
from .privacy import driving_wrapper

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
