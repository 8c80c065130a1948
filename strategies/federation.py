"""What a strategy is told of its federation, and the entries of messages on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from flwr.app import RecordDict

from fedbary.methods import Tensors

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
    """The nodes, as far as known. Each part may be left out.

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
    """

    trainers: Choose | None = None
    evaluators: Choose | None = None
    tell: Callable[[], Mapping[str, int | float]] | None = None
    name: Callable[[int], str | None] | None = None
    train_limit: Limit | None = None
    evaluate_limit: Limit | None = None
    known_metrics: Mapping[str, tuple[float, float]] | None = None
    listener: Listener | None = None

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
