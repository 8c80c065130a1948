"""Weight of a reply: its claim, bounded by its node's examples and by the others' weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy
from statistics import median_low
from typing import cast

from flwr.app import Message, MetricRecord, RecordDict

from .admission import metrics_of

Limit = Callable[[int], float | None]
"""Takes a node's id, and returns the largest weight of its reply; None if unknown."""


def weight_of(reply: Message, weighted_by_key: str) -> float:
    """Return the weight of an admitted reply."""
    return float(cast(float, metrics_of(reply)[weighted_by_key]))


def weightless(
    replies: Sequence[Message], refusals: Sequence[str | None], limit: Limit | None
) -> list[str | None]:
    """Add refusals of replies from nodes that hold nothing, whatever weight they claim."""
    return [
        reason
        or ("its node holds nothing that it could weigh" if _most(reply, limit) <= 0 else None)
        for reply, reason in zip(replies, refusals, strict=True)
    ]


def overweight(
    replies: Sequence[Message], weighted_by_key: str, limit: Limit | None
) -> list[str | None]:
    """Return a warning for each reply that claims more weight than its node holds, else None."""
    pairs = [(weight_of(reply, weighted_by_key), _most(reply, limit)) for reply in replies]
    return [
        f"{weighted_by_key} {weight:g} counts as {most:g}, as its node holds no more"
        if weight > most
        else None
        for weight, most in pairs
    ]


def at_most(weights: Sequence[float], ratio: float, of: Sequence[float]) -> list[float]:
    """Return weights of at most a ratio times the median of some.

    The median of an even number is its lower middle, so that half of them cannot raise it.
    """
    most = ratio * median_low(of)
    return [min(weight, most) for weight in weights]


def bounded(
    replies: Sequence[Message],
    weighted_by_key: str,
    limit: Limit | None,
    ratio: float | None,
    others: Sequence[float] = (),
) -> list[Message]:
    """Return admitted replies with bounded weights.

    With weights w_k and limits l_k of the nodes, and w'_k = min(w_k, l_k), reply k weighs min(w'_k,
    ratio · median w'); see `at_most`.

    Parameters
    ----------
    replies : sequence of Message
        They are not changed.
    weighted_by_key : str
        The metric that holds a reply's weight; the result may hold a smaller one.
    limit : callable, optional
        Takes a node's id, and returns the largest weight of its reply.
    ratio : float, optional
        The largest ratio of a weight to the median, 1 or more. None: no bound.
    others : sequence of float
        Weights of other replies that the median counts too.
    """
    weights = [weight_of(reply, weighted_by_key) for reply in replies]
    allowed = [
        min(weight, _most(reply, limit)) for weight, reply in zip(weights, replies, strict=True)
    ]
    if ratio is not None and allowed:
        allowed = at_most(allowed, ratio, [*allowed, *others])
    return [
        reply if may == weight else _weighing(reply, weighted_by_key, may)
        for reply, weight, may in zip(replies, weights, allowed, strict=True)
    ]


def _most(reply: Message, limit: Limit | None) -> float:
    most = None if limit is None else limit(reply.metadata.src_node_id)
    return math.inf if most is None else float(most)


def _weighing(reply: Message, weighted_by_key: str, weight: float) -> Message:
    (key,) = reply.content.metric_records
    metrics = MetricRecord({**metrics_of(reply), weighted_by_key: weight})
    lighter = copy(reply)
    lighter.content = RecordDict({**reply.content, key: metrics})
    return lighter
