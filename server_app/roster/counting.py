"""How many nodes there are to be, which of them a round takes, and how the log says it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from server_app.roster.member import Member

NAMED = 10
"""How many nodes of a kind the log names at most."""


def expected(clients: int, members: Iterable[Member]) -> int:
    """Return the number of nodes that most say there are, the members and the setting `clients`.

    If equally many say several numbers, it is the largest: one member cannot shorten the wait.
    """
    said = Counter([clients, *(member.partitions or clients for member in members)])
    return max(said, key=lambda number: (said[number], number))


def drawn(nodes: Sequence[int], count: int, seed: int) -> list[int]:
    """Return so many of the nodes, at least one if there is any, in their order."""
    if not nodes:
        return []
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.choice(len(nodes), size=max(1, count), replace=False))
    return [nodes[index] for index in chosen]


def answered(members: int, total: int, groups: Mapping[str, Sequence[str]], away: int) -> str:
    """Say how many nodes answered, who belongs to each group, and how many never came."""
    said = [f"{group}: {', '.join(names[:NAMED])}" for group, names in groups.items() if names]
    if away > 0:
        said.append(f"not connected: {away}")
    head = f"{members} of {total} nodes answered"
    return f"{head} ({'; '.join(said)})" if said else head
