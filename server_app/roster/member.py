"""A node's claims on its data: read once, with suspicion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from flwr.app import ConfigRecord, MetricRecord, RecordDict

from fedbary.data.sites import LONGEST_NAME
from fedbary.texts import shown

MOST_EXAMPLES = 10**12
"""The most examples that a site is believed to hold."""


@dataclass(frozen=True)
class Member:
    """A node whose data fit.

    Parameters
    ----------
    node_id : int
        As Flower numbers it.
    name : str
        Name of the site.
    partition : int
        Number of its part of the named data set; -1 for data of its own.
    partitions : int
        Number of parts; 0 for data of its own.
    num_examples : int
        Number of training examples.
    num_held_out : int
        Number of held-out examples, in addition.
    label_counts : list of int
        Number of examples of each class, held-out ones included; empty for a regression, and for a
        site that does not tell.
    """

    node_id: int
    name: str
    partition: int
    partitions: int
    num_examples: int
    num_held_out: int
    label_counts: list[int]

    @property
    def claims(self) -> set[str]:
        """Its name and its partition, which no other member may have."""
        return {self.name} | ({f"partition {self.partition}"} if self.partition >= 0 else set())


def member_from(node_id: int, content: RecordDict, classes: int) -> Member:
    """Read a node's answer on its data.

    Raises
    ------
    ValueError
        If it is invalid; the message says why. Nodes are not trusted.
    """
    metrics = content.metric_records.get("metrics", MetricRecord())
    name = content.config_records.get("site", ConfigRecord()).get("name")
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= LONGEST_NAME:
        raise ValueError(f"its name is not one of 1 to {LONGEST_NAME} printable characters")
    said = [metrics.get(key) for key in ("partition-id", "num-partitions", "num-examples")]
    said.append(metrics.get("num-held-out", 0))
    counts = metrics.get("label-counts")
    if not isinstance(counts, list) or not all(isinstance(n, int) for n in [*said, *counts]):
        raise ValueError("its answer does not say in whole numbers what it holds")
    partition, partitions, examples, held_out = (cast(int, number) for number in said)
    labels = [int(count) for count in counts]
    if not (partition == -1 and partitions == 0 or 0 <= partition < partitions):
        raise ValueError(f"it holds partition {partition} of {partitions}")
    held = sum(labels) if labels else examples + held_out
    fit = len(labels) in (0, classes) and min(labels, default=0) >= 0
    if not (fit and 1 <= examples <= held <= MOST_EXAMPLES):
        raise ValueError(
            f"it trains on {examples} examples and holds {shown(labels)} of each class"
        )
    return Member(node_id, name, partition, partitions, examples, held - examples, labels)
