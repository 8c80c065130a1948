"""Which nodes take part: who they are, who is there, and who trains in which round."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from logging import INFO, WARNING

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log

from fedbary.config import Settings
from fedbary.errors import RunError
from fedbary.regression.federation import Columns
from fedbary.seeds import derive_seed
from fedbary.task import Task

POLL_SECONDS = 0.2

GRACE_SECONDS = 5.0
"""How long to wait for further nodes when all that came cannot take part."""


@dataclass(frozen=True)
class Member:
    """A node whose data fit.

    Parameters
    ----------
    node_id : int
        As Flower numbers it.
    name : str
        What the site is called.
    partition : int
        Which part of the named data set it holds; -1 for data of its own.
    num_examples : int
        How much it trains on.
    label_counts : list of int
        How many examples of each class it holds, those that it holds out too; of a regression none.
    """

    node_id: int
    name: str
    partition: int
    num_examples: int
    label_counts: list[int]


class Roster:
    """The federation's members, as they come, fall silent and come back.

    Parameters
    ----------
    grid : Grid
        The way to the nodes.
    settings : Settings
        The run's settings.
    task : Task or Columns
        What every site's data must fit; the nodes are told.
    """

    def __init__(self, grid: Grid, settings: Settings, task: Task | Columns) -> None:
        self._grid = grid
        self._settings = settings
        self._task = task
        self._members: dict[int, Member] = {}
        self._refused: dict[int, str] = {}
        self._silent: set[int] = set()
        self._asked: dict[str, int] = {}
        self._expected = 0

    @property
    def members(self) -> list[Member]:
        """The members by partition, then by name."""
        return sorted(self._members.values(), key=lambda m: (m.partition, m.name))

    def name(self, node_id: int) -> str | None:
        """Return what a member's site is called; None for a node that is none."""
        member = self._members.get(node_id)
        return member.name if member else None

    def gather(self) -> None:
        """Wait for the federation's nodes and ask each what it holds.

        As many are waited for as there are partitions, or, where sites have data of their own, as
        the setting `clients` says. The server starts before all nodes are registered; without the
        wait round 1 would train some. Nodes that answer with an error are left out, with a
        warning; so are those that are not there within `round_timeout`, until they come.

        Raises
        ------
        RunError
            If fewer than `min_replies` can take part.
        """
        timeout = self._settings.round_timeout
        deadline = time.monotonic() + timeout
        while not self._members or len(self._members) + len(self._refused) < self._expected:
            known = self._members.keys() | self._refused.keys()
            new = [node for node in self._grid.get_node_ids() if node not in known]
            if self._refused and not self._members and not new:
                deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
            if (left := deadline - time.monotonic()) <= 0:
                break
            if new:
                self._admit(self._grid.send_and_receive(self._queries(new), timeout=left))
            else:
                time.sleep(POLL_SECONDS)
        if len(self._members) < self._settings.min_replies:
            raise RunError(self._nobody(timeout))
        log(INFO, "%d of %d nodes take part", len(self._members), self._expected)

    def participants(self, server_round: int) -> list[int]:
        """Return the ids of the nodes that train in a round, in the order of the members.

        They are chosen by their place among the members and from the seed, so that runs repeat;
        those that are away, or did not answer when last asked, are passed over. While fewer than
        `min_replies` are left, more are waited for, up to `round_timeout`.
        """
        deadline = time.monotonic() + self._settings.round_timeout
        while True:
            there = self._present()
            if len(there) >= self._settings.min_replies or time.monotonic() > deadline:
                break
            time.sleep(POLL_SECONDS)
        members = [member for member in self.members if member.node_id in there]
        if not members:
            return []
        count = max(1, round(self._settings.participation * len(members)))
        rng = np.random.default_rng(derive_seed(self._settings.seed, "participants", server_round))
        chosen = np.sort(rng.choice(len(members), size=count, replace=False))
        return [members[index].node_id for index in chosen]

    def present(self) -> list[int]:
        """Return the ids of the members that are there and did not fall silent."""
        there = self._present()
        return [member.node_id for member in self.members if member.node_id in there]

    def note_silent(self, node_ids: Iterable[int]) -> None:
        """Pass nodes over that did not answer, until they answer a question."""
        for node_id in node_ids:
            if node_id not in self._silent:
                log(WARNING, "%s did not answer and is passed over", self.name(node_id))
                self._silent.add(node_id)

    def _present(self) -> set[int]:
        """Take the answers that have come, ask whom there is to ask, and say who is there."""
        if self._asked:
            self._admit(self._grid.pull_messages(list(self._asked)))
        online = set(self._grid.get_node_ids())
        there = (online & self._members.keys()) - self._silent
        if ask := sorted(online - there - set(self._asked.values())):
            asked = self._grid.push_messages(self._queries(ask))
            self._asked |= {i: node for i, node in zip(asked, ask, strict=True) if i}
        return there

    def _queries(self, nodes: list[int]) -> list[Message]:
        record = RecordDict({"config": ConfigRecord({**self._task.config()})})
        return [Message(record, node, MessageType.QUERY) for node in nodes]

    def _admit(self, replies: Iterable[Message]) -> None:
        for reply in replies:
            node = self._asked.pop(reply.metadata.reply_to_message_id, reply.metadata.src_node_id)
            if reply.has_error():
                self._refuse(node, " ".join(str(reply.error.reason).split()))
                continue
            self._silent.discard(node)
            if node in self._members:
                continue
            metrics = reply.content.metric_records["metrics"]
            name = str(reply.content.config_records["site"]["name"])
            if name in {member.name for member in self._members.values()}:
                self._refuse(node, f"another node holds {name} already")
                continue
            partitions = int(metrics["num-partitions"])  # type: ignore[arg-type]
            self._expected = max(self._expected, partitions or self._settings.clients)
            self._refused.pop(node, None)
            self._members[node] = Member(
                node,
                name,
                int(metrics["partition-id"]),  # type: ignore[arg-type]
                int(metrics["num-examples"]),  # type: ignore[arg-type]
                [int(count) for count in metrics["label-counts"]],  # type: ignore[union-attr]
            )

    def _refuse(self, node: int, reason: str) -> None:
        if node not in self._members and self._refused.get(node) != reason:
            self._refused[node] = reason
            log(WARNING, "Node %d is left out: %s", node, reason)

    def _nobody(self, timeout: float) -> str:
        if self._refused and not self._members:
            return f"no node can take part: {next(iter(self._refused.values()))}"
        expected = self._expected or "the"
        return f"{len(self._members)} of {expected} nodes answered within {timeout:g} seconds"
