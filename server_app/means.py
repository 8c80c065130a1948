"""Means of the clients' metrics that the run knows."""

from __future__ import annotations

from collections.abc import Callable, Collection

from flwr.app import MetricRecord, RecordDict


def means_of(known: Collection[str]) -> Callable[[list[RecordDict], str], MetricRecord]:
    """Return the function that takes the weighted mean of each known metric.

    It is over the replies that hold the metric; the weight itself is not averaged.
    """

    def means(replies: list[RecordDict], weight_key: str) -> MetricRecord:
        told = [next(iter(reply.metric_records.values())) for reply in replies]
        found = MetricRecord()
        for key in sorted(set(known) - {weight_key}):
            pairs = [(float(m[weight_key]), float(m[key])) for m in told if key in m]  # type: ignore[arg-type]
            if total := sum(weight for weight, _ in pairs):
                found[key] = sum(weight / total * value for weight, value in pairs)
        return found

    return means
