"""The part of all clients' examples that lies at a round's replies."""

from __future__ import annotations

from collections.abc import Sequence

from fedbary.methods.shared.method import Reply, Server


def all_examples(server: Server, replies: Sequence[Reply]) -> float:
    """Return how many examples all clients have: those of the replies, where nobody knows more."""
    return max(float(server.examples), sum(reply.weight for reply in replies))


def part_of_all(server: Server, replies: Sequence[Reply]) -> float:
    """Return the part of all clients' examples that lies at a round's replies.

    If nobody knows these, it is the part of the clients. If nobody knows either, it is 1.
    """
    if server.examples:
        return min(1.0, sum(reply.weight for reply in replies) / server.examples)
    return min(1.0, len(replies) / server.clients) if server.clients else 1.0
