"""The number of nodes, a round's choice of them, and their description in the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from server_app.roster.member import Member

NAMED = 10
"""Most nodes of a kind that the log names."""


def expected(clients: int, members: Iterable[Member]) -> int:
    """Return the number of nodes that most members, and the setting `clients`, name.

    A tie goes to the largest, so that one member cannot shorten the wait.
    """
    said = Counter([clients, *(member.partitions or clients for member in members)])
    return max(said, key=lambda number: (said[number], number))


def drawn(nodes: Sequence[int], count: int, seed: int) -> list[int]:
    """Return `count` of the nodes, at least one if there is any, in their order."""
    if not nodes:
        return []
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.choice(len(nodes), size=max(1, count), replace=False))
    return [nodes[index] for index in chosen]


def answered(members: int, total: int, groups: Mapping[str, Sequence[str]], away: int) -> str:
    """Describe the answers: the members' number, each group's nodes, and that of absent ones."""
    said = [f"{group}: {', '.join(names[:NAMED])}" for group, names in groups.items() if names]
    if away > 0:
        said.append(f"not connected: {away}")
    head = f"{members} of {total} nodes can take part"
    return f"{head} ({'; '.join(said)})" if said else head
