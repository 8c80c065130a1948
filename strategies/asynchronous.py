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
