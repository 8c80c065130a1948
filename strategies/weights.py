"""How much a reply counts: as it says, but no more than its node holds or than fits the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy
from statistics import median_low
from typing import cast

from flwr.app import Message, MetricRecord, RecordDict

from fedbary.errors import SettingError

from .admission import metrics_of

Limit = Callable[[int], float | None]
"""From a node's id, the most that its reply may weigh; None where that is not known."""


def weight_of(reply: Message, weighted_by_key: str) -> float:
    """Return the weight of an admitted reply."""
    return float(cast(float, metrics_of(reply)[weighted_by_key]))


def check_weight_ratio(ratio: float | None) -> None:
    """Raise a SettingError unless the ratio is None or a finite number from 1 up."""
    if ratio is not None and not 1 <= ratio < math.inf:
        raise SettingError("max_weight_ratio", ratio, "1 or more, or None")


def weightless(
    replies: Sequence[Message], refusals: Sequence[str | None], limit: Limit | None
) -> list[str | None]:
    """Refuse, too, replies of nodes that hold nothing, whatever weight they claim."""
    return [
        reason
        or ("its node holds nothing that it could weigh" if _most(reply, limit) <= 0 else None)
        for reply, reason in zip(replies, refusals, strict=True)
    ]


def overweight(
    replies: Sequence[Message], weighted_by_key: str, limit: Limit | None
) -> list[str | None]:
    """Say of each admitted reply by how much it claims to weigh more than its node holds."""
    pairs = [(weight_of(reply, weighted_by_key), _most(reply, limit)) for reply in replies]
    return [
        f"{weighted_by_key} {weight:g} counts as {most:g}, as its node holds no more"
        if weight > most
        else None
        for weight, most in pairs
    ]


def bounded(
    replies: Sequence[Message], weighted_by_key: str, limit: Limit | None, ratio: float | None
) -> list[Message]:
    """Return admitted replies of which none weighs more than it may; what is above counts as that.

    With weights w_k and the limits l_k of their nodes, reply k weighs w'_k = min(w_k, l_k), or, if
    that is more, ratio · median of all w'. The median of an even number is the lower of the two in
    the middle, so that half of the replies cannot raise it.

    Parameters
    ----------
    replies : sequence of Message
        None is changed.
    weighted_by_key : str
        The metric that holds a reply's weight; it is what may be less in the result.
    limit : callable, optional
        The most that a node's reply may weigh.
    ratio : float, optional
        How many times the median a weight may be, 1 or more; None: any number of times.
    """
    weights = [weight_of(reply, weighted_by_key) for reply in replies]
    allowed = [
        min(weight, _most(reply, limit)) for weight, reply in zip(weights, replies, strict=True)
    ]
    if ratio is not None and allowed:
        most = ratio * median_low(allowed)
        allowed = [min(weight, most) for weight in allowed]
    return [
        reply if may == weight else _weighing(reply, weighted_by_key, may)
        for reply, weight, may in zip(replies, weights, allowed, strict=True)
    ]


def _most(reply: Message, limit: Limit | None) -> float:
    most = None if limit is None else limit(reply.metadata.src_node_id)
    return math.inf if most is None else float(most)


def _weighing(reply: Message, weighted_by_key: str, weight: float) -> Message:
    """Return a reply with another weight and the same arrays."""
    (key,) = reply.content.metric_records
    metrics = MetricRecord({**metrics_of(reply), weighted_by_key: weight})
    lighter = copy(reply)
    lighter.content = RecordDict({**reply.content, key: metrics})
    return lighter
