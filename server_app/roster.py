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
from fedbary.seeds import derive_seed

POLL_SECONDS = 0.2


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
    RuntimeError
        If the nodes are not there, or none gives a valid answer, within `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    members: dict[int, Member] = {}
    refused: dict[int, str] = {}
    expected = 1
    while len(members) + len(refused) < expected:
        left = deadline - time.monotonic()
        if left <= 0:
            answered = len(members) + len(refused)
            raise RuntimeError(f"{answered} of {expected} nodes answered in {timeout:g} seconds")
        new = [n for n in grid.get_node_ids() if n not in members and n not in refused]
        if not new:
            time.sleep(POLL_SECONDS)
            continue
        queries = [Message(RecordDict(), node, MessageType.QUERY) for node in new]
        for reply in grid.send_and_receive(queries, timeout=left):
            node = reply.metadata.src_node_id
            if reply.has_error():
                refused[node] = str(reply.error.reason).strip().splitlines()[-1]
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
    if not members:
        raise RuntimeError(f"no node can take part: {'; '.join(refused.values())}")
    log(INFO, "%d of %d nodes take part", len(members), expected)
    return sorted(members.values(), key=lambda member: member.partition)


def participants(members: list[Member], settings: Settings, server_round: int) -> list[int]:
    """Node ids that train in a round, chosen by partition from the seed, so that runs repeat.

    They come in the order of the partitions, the largest client first.
    """
    count = max(1, round(settings.participation * len(members)))
    rng = np.random.default_rng(derive_seed(settings.seed, "participants", server_round))
    chosen = np.sort(rng.choice(len(members), size=count, replace=False))
    return [members[index].node_id for index in chosen]
