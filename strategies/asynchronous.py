"""A strategy whose server does not wait: how replies of any age are admitted and aggregated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from statistics import fmean
from typing import Any

import torch
from flwr.app import ArrayRecord, Message, MetricRecord
from torch import Tensor

from fedbary.aggregation.arriving import parts_of
from fedbary.aggregation.prefixes import under
from fedbary.methods import Arrival, Reply, Server, Tensors

from .admission import arrays_of
from .arrays import tensor_from_array
from .distances import LEAST, distance, farness, too_far
from .gathering import GatheringStrategy
from .names import Names
from .weights import at_most, weight_of

RECENT = 20
"""Number of earlier admitted replies that a single reply is compared with."""

_RECENT, _WEIGHTS = "async/recent", "async/weight/"


class AsynchronousStrategy(GatheringStrategy):
    """A method's strategy on a clock, real or virtual, without rounds.

    A method's strategy that is given `asynchronous` is one: `RKLB(asynchronous=Asynchronous())`.
    Whenever fewer than `concurrency` clients are at work, the seed draws a free one. A client whose
    reply waits for its aggregate is not free, nor one that has not replied in time to a question of
    this aggregate. Each aggregate takes `buffer` replies, or fewer if nobody else can be asked.

    Replies are compared with those of earlier aggregates: their distances from what was sent, and
    with `max_weight_ratio` their weights with the newest of all clients.

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
        self._recent: list[tuple[float, ...]] = []
        self._weights: dict[str, float] = {}

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state for a resume, with what the next replies are compared with."""
        state = super().state_dict()
        state[_RECENT] = torch.tensor(self._recent, dtype=torch.float64)
        for client, weight in self._weights.items():
            state[_WEIGHTS + client] = torch.tensor(weight, dtype=torch.float64)
        return state

    def load_state_dict(self, state: Mapping[str, Tensor], completed_rounds: int) -> None:
        """Take a state of `state_dict`, or a method's alone."""
        super().load_state_dict(state, completed_rounds)
        self._recent = [tuple(pair) for pair in state.get(_RECENT, torch.zeros(0, 2)).tolist()]
        self._weights = {client: float(each) for client, each in under(_WEIGHTS, state).items()}

    def _others(self) -> list[float]:
        """Return the newest weights of the clients whose replies are not in this aggregate."""
        return [weight for name, weight in self._weights.items() if name not in self._arrived]

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
        """Keep the strategy's state, and the replies' distances and weights."""
        self._recent = [*self._recent, *map(self._distances, admitted)][-RECENT:]
        self._weights |= {self._name(r): weight_of(r, self.weighted_by_key) for r in admitted}
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
