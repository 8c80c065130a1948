"""Flower's FedAvg whose caller chooses the nodes of a round and adds entries to messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from fedbary.methods import Tensors


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


class AskingStrategy(FedAvg):
    """Flower's FedAvg with chosen nodes, marked questions, and rounds counted over resumes.

    Parameters
    ----------
    *args, **kwargs
        Arguments of `flwr.serverapp.strategy.FedAvg`, in its order.
    choose_nodes, choose_evaluators : callable, optional
        Take the server round, and return the ids of the nodes that train or evaluate, in the order
        of sending. None: Flower samples them, which no seed reproduces.
    tell : callable, optional
        Returns further entries of each message's config: values by name. It is called once the
        nodes are chosen.

    Attributes
    ----------
    completed_rounds : int
        Rounds of earlier starts. Flower counts from 1; this is added to its count.
    """

    def __init__(
        self,
        *args: Any,
        choose_nodes: Choose | None = None,
        choose_evaluators: Choose | None = None,
        tell: Callable[[], Mapping[str, int | float]] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.choose_nodes = choose_nodes
        self.choose_evaluators = choose_evaluators
        self.tell = tell
        self.completed_rounds = 0

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages that ask nodes to train."""
        server_round += self.completed_rounds
        if (nodes := self._chosen(server_round)) is None:
            return list(super().configure_train(server_round, arrays, config, grid))
        return self._messages(server_round, arrays, config, nodes, MessageType.TRAIN)

    def _chosen(self, server_round: int) -> list[int] | None:
        """Return the nodes that train; None if Flower samples them."""
        return None if self.choose_nodes is None else self.choose_nodes(server_round)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages that ask nodes to evaluate."""
        server_round += self.completed_rounds
        if self.choose_evaluators is None:
            return list(super().configure_evaluate(server_round, arrays, config, grid))
        nodes = self.choose_evaluators(server_round)
        return self._messages(server_round, arrays, config, nodes, MessageType.EVALUATE)

    def _messages(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        node_ids: list[int],
        message_type: str,
    ) -> list[Message]:
        config["server-round"] = server_round
        record = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        return self._construct_messages(record, node_ids, message_type)

    def _construct_messages(
        self, record: RecordDict, node_ids: list[int], message_type: str
    ) -> list[Message]:
        """Make a message for each node, marked with its question."""
        config = record.config_records[self.configrecord_key]
        if self.tell is not None:
            config.update(self.tell())
        group_id = question(message_type, cast(int, config["server-round"]))
        return [Message(record, node_id, message_type, group_id=group_id) for node_id in node_ids]


def question(message_type: str, server_round: int) -> str:
    """Return the mark of a message's question; by it a late reply is recognised."""
    return f"{message_type}, round {server_round}"
