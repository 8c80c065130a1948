"""A strategy's knowledge of its federation, its memory from round to round, and entries on both."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from flwr.app import ArrayRecord, RecordDict
from torch import Tensor

from fedbary.aggregation.sums import select_prefix
from fedbary.errors import SettingError
from fedbary.methods import Method, Reply, Server, Tensors

from .conventions import Convention, check_arrays

EXAMPLES_KEY = "all-examples"
"""The entry of a message's config with the number of examples of all clients."""

CLIENTS_KEY = "all-clients"
"""The entry with the number of clients."""

ASKED_KEY = "asked-examples"
"""The entry with the number of clients that are asked in the round."""

COUNTED_KEY = "counted-rounds"
"""The entry with the number of rounds so far that gave an aggregate."""

Choose = Callable[[int], list[int]]
"""Takes the server round, and returns the ids of the nodes to ask, in the order of sending."""

Limit = Callable[[int], float | None]
"""Takes a node's id, and returns the largest weight of its reply; None if unknown."""


class Listener(Protocol):
    """Is given the training messages, and by node the replies with sound metrics.

    The replies' content sets their order. Training replies of a skipped round are not given.
    """

    def asked(self, contents: Sequence[RecordDict]) -> None:
        """Take the training messages of a round."""

    def trained(self, replies: Mapping[int, RecordDict], tensors: Sequence[Tensors]) -> None:
        """Take the training replies, with their arrays in fedbary's names and unit."""

    def evaluated(self, replies: Mapping[int, RecordDict]) -> None:
        """Take the evaluation replies."""


@dataclass(frozen=True, kw_only=True)
class Federation:
    """The knowledge that a strategy has of the nodes. Each part may be left out.

    Parameters
    ----------
    trainers, evaluators : callable, optional
        Take the server round, and return the ids of the nodes that train or evaluate, in the order
        of sending. None: Flower samples them, which no seed reproduces.
    tell : callable, optional
        Returns further entries of each message's config: values by name. It is called once the
        nodes are chosen.
    name : callable, optional
        Takes a node's id, and returns the name of its site, None if unknown. Refusals use the name,
        and a method identifies the site by it in all rounds. Without a name the id is used, which
        changes when a SuperNode without a registered key restarts.
    train_limit, evaluate_limit : callable, optional
        Takes a node's id, and returns the largest weight of its reply, None if unknown. A larger
        weight is reduced to it, with a warning; a reply whose limit is 0 is refused.
    known_metrics : mapping of str to (float, float), optional
        Metrics that clients send as numbers, each with its least and its largest value. A reply
        with another value under one of these keys is left out of the metrics. Replies may hold
        other keys; `train_metrics_aggr_fn` and `evaluate_metrics_aggr_fn` should read these keys
        alone. None: the commonest set of keys is averaged; replies with others are left out.
    listener : Listener, optional
        Is given the replies whose metrics are averaged.
    doubt : callable, optional
        Takes the server and a reply, and returns why no rows give this reply; "" if some may.
        None: any may.
    """

    trainers: Choose | None = None
    evaluators: Choose | None = None
    tell: Callable[[], Mapping[str, int | float]] | None = None
    name: Callable[[int], str | None] | None = None
    train_limit: Limit | None = None
    evaluate_limit: Limit | None = None
    known_metrics: Mapping[str, tuple[float, float]] | None = None
    listener: Listener | None = None
    doubt: Callable[[Server, Reply], str] | None = None

    def client(self, node_id: int) -> str:
        """Return the name by which a method knows the client of a node."""
        known = self.name(node_id) if self.name else None
        return known or str(node_id)

    def entries(self) -> Mapping[str, int | float]:
        """Return the further entries of each message's config."""
        return self.tell() if self.tell else {}


def question(message_type: str, server_round: int) -> str:
    """Return the mark of a message's question; by it a late reply is recognised."""
    return f"{message_type}, round {server_round}"


KEPT_KEY = "kept-round"
"""The entry with the last round in which the client's reply was admitted, 0 for none. If known, the
same as before the last round that counted follows: the server may go back there."""

RUN_KEY = "kept-run"
"""The entry that distinguishes a client's tensors of several runs; a resumed run keeps it."""

PRIOR = "prior/"
"""Prefix of the keys of the prior's arrays in a training message."""

STATE = "method."
"""Prefix of the names of a method's state in a strategy's state."""

_KEPT, _RUN = "kept.", "run"


class Memory:
    """A method's state at the server, each client's last admitted round, and the prior.

    Parameters
    ----------
    method : Method
        The method.
    keeps : bool
        True: its clients keep tensors from round to round.
    prior_arrays : ArrayRecord, optional
        The prior that clients are sent.

    Attributes
    ----------
    state : mapping of str to Tensor
        The method's state after the last round that counted.
    pending : mapping of str to Tensor
        The state after a round that does not count yet.
    """

    def __init__(self, method: Method, keeps: bool, prior_arrays: ArrayRecord | None) -> None:
        self._method, self._keeps, self._prior = method, keeps, prior_arrays
        self.state: Tensors = {}
        self.pending: Tensors = {}
        self._inherited: Tensors | None = None
        self._admitted: dict[str, int] = {}
        self._admitted_before: dict[str, int] | None = None
        self._run = secrets.randbits(62)

    def inherit(self, state: Tensors) -> None:
        """Take the state that the first round begins with."""
        self.state = self._inherited = state

    def begin(self, model: Tensors) -> None:
        """Begin with the first round."""
        self.state = self._inherited or self._method.start(model)
        self._admitted, self._admitted_before = {}, None
        self._run = secrets.randbits(62)

    def entries(self, client: str, trains: bool) -> dict[str, int | list[int]]:
        """Return what a client's message says of the tensors that it keeps."""
        if not self._keeps:
            return {}
        before = [self._admitted_before] if trains and self._admitted_before is not None else []
        rounds = [admitted.get(client, 0) for admitted in (self._admitted, *before)]
        return {KEPT_KEY: rounds, RUN_KEY: self._run}

    def commit(self, clients: Iterable[str], server_round: int) -> None:
        """Keep the state of a round that counts, and the clients that it admitted."""
        self.state = self.pending
        self._admitted_before = dict(self._admitted)
        self._admitted |= dict.fromkeys(clients, server_round)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state for a resume."""
        state = {STATE + name: tensor for name, tensor in self.state.items()}
        if self._keeps:
            numbers = {_KEPT + name: number for name, number in self._admitted.items()}
            numbers[_RUN] = self._run
            state |= {name: torch.tensor(number) for name, number in numbers.items()}
        return state

    def load_state_dict(self, state: Mapping[str, Tensor], completed_rounds: int) -> None:
        """Take a state that `state_dict` returned after so many rounds."""
        self.state = {name: tensor.clone() for name, tensor in select_prefix(STATE, state).items()}
        self._inherited = None if completed_rounds else self.state
        self._admitted = {name: int(number) for name, number in select_prefix(_KEPT, state).items()}
        self._run = int(state.get(_RUN, self._run))

    def prior(self, arrays: ArrayRecord, convention: Convention) -> ArrayRecord:
        """Return the prior's arrays under the keys that they have in a training message.

        Raises
        ------
        SettingError
            If they are not the Gaussians of the global arrays.
        """
        if self._prior is None:
            return ArrayRecord()
        pairs = convention.pairs(arrays.keys())
        keys = sorted({*pairs, *pairs.values()})
        prior = ArrayRecord({key: self._prior[key] for key in keys if key in self._prior})
        try:
            check_arrays(prior, ArrayRecord({key: arrays[key] for key in keys}), convention)
        except ValueError as error:
            raise SettingError("prior_arrays", error, "the global arrays' Gaussians") from None
        return ArrayRecord({PRIOR + key: array for key, array in prior.items()})
