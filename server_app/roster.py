"""Which nodes take part: who they are, and who trains in which round."""

from __future__ import annotations

import time
from dataclasses import dataclass
from logging import INFO, WARNING

import numpy as np
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log

from fedbary.config import Settings
from fedbary.errors import RunError
from fedbary.seeds import derive_seed

POLL_SECONDS = 0.2

GRACE_SECONDS = 5.0
"""How long to wait for further nodes when all that came cannot take part."""


@dataclass(frozen=True)
class Member:
    """A node that holds a partition of the data."""

    node_id: int
    partition: int
    num_examples: int
    label_counts: list[int]


def gather(grid: Grid, timeout: float) -> list[Member]:
    """Wait for the federation's nodes and ask each what it holds.

    The first node to answer says how many partitions there are; that many nodes are waited for.
    The server starts before all nodes are registered; without the wait round 1 would train some.

    Returns
    -------
    list of Member
        Ordered by partition. Nodes that answer with an error are left out, with a warning.

    Raises
    ------
    RunError
        If the nodes are not there, or none gives a valid answer, within `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    members: dict[int, Member] = {}
    refused: dict[int, str] = {}
    expected = 0
    while not members or len(members) + len(refused) < expected:
        new = [node for node in grid.get_node_ids() if node not in members and node not in refused]
        if refused and not members and not new:
            deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        if (left := deadline - time.monotonic()) <= 0:
            raise RunError(_nobody(len(members), expected, timeout, refused))
        if not new:
            time.sleep(POLL_SECONDS)
            continue
        queries = [Message(RecordDict(), node, MessageType.QUERY) for node in new]
        for reply in grid.send_and_receive(queries, timeout=left):
            node = reply.metadata.src_node_id
            if reply.has_error():
                refused[node] = " ".join(str(reply.error.reason).split())
                log(WARNING, "Node %d is left out: %s", node, refused[node])
                continue
            metrics = reply.content.metric_records["metrics"]
            members[node] = Member(
                node,
                int(metrics["partition-id"]),  # type: ignore[arg-type]
                int(metrics["num-examples"]),  # type: ignore[arg-type]
                [int(count) for count in metrics["label-counts"]],  # type: ignore[union-attr]
            )
            expected = max(expected, int(metrics["num-partitions"]))  # type: ignore[arg-type]
    log(INFO, "%d of %d nodes take part", len(members), expected)
    return sorted(members.values(), key=lambda member: member.partition)


def _nobody(members: int, expected: int, timeout: float, refused: dict[int, str]) -> str:
    if refused and not members:
        return f"no node can take part: {next(iter(refused.values()))}"
    return f"{members} of {expected or 'the'} nodes answered within {timeout:g} seconds"


def participants(members: list[Member], settings: Settings, server_round: int) -> list[int]:
    """Node ids that train in a round, chosen by partition from the seed, so that runs repeat.

    They come in the order of the partitions, the largest client first.
    """
    count = max(1, round(settings.participation * len(members)))
    rng = np.random.default_rng(derive_seed(settings.seed, "participants", server_round))
    chosen = np.sort(rng.choice(len(members), size=count, replace=False))
    return [members[index].node_id for index in chosen]
