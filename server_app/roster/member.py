"""A node's claims on its data: read once, with suspicion."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from logging import INFO
from typing import TYPE_CHECKING, cast

from flwr.app import ConfigRecord, MetricRecord, RecordDict

from fedbary.data.forms import user_path
from fedbary.data.sites import LONGEST_NAME, SHAREABLE, UNBOUNDED
from fedbary.errors import RunError
from fedbary.runs.location import SETTINGS, read_rounds, read_settings
from fedbary.runs.schema import CLIENTS
from fedbary.runs.sites import SiteKey
from fedbary.settings.config import Settings, read_yaml
from fedbary.strategies.internals import log
from fedbary.texts import shown

if TYPE_CHECKING:
    from fedbary.strategies.internals import NodeInfo

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
    content : str
        The hash of the named data set as the node reads it; "" if it does not tell.
    numbers_left : float
        How many numbers it may send, this answer included; infinite without a budget.
    shared : frozenset of str
        The words of `SHAREABLE` that it shares.
    """

    node_id: int
    name: str
    partition: int
    partitions: int
    num_examples: int
    num_held_out: int
    label_counts: list[int]
    content: str = ""
    numbers_left: float = math.inf
    shared: frozenset[str] = frozenset()

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
    site = content.config_records.get("site", ConfigRecord())
    name = site.get("name")
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= LONGEST_NAME:
        raise ValueError(f"its name is not one of 1 to {LONGEST_NAME} printable characters")
    said = [metrics.get(key) for key in ("partition-id", "num-partitions", "num-examples")]
    said += [metrics.get("num-held-out", 0), metrics.get("numbers-left", UNBOUNDED)]
    counts = metrics.get("label-counts")
    if not isinstance(counts, list) or not all(isinstance(n, int) for n in [*said, *counts]):
        raise ValueError("its answer does not say in whole numbers what it holds")
    partition, partitions, examples, held_out, may = (cast(int, number) for number in said)
    labels = [int(count) for count in counts]
    if not (partition == -1 and partitions == 0 or 0 <= partition < partitions):
        raise ValueError(f"it holds partition {partition} of {partitions}")
    held = sum(labels) if labels else examples + held_out
    fit = len(labels) in (0, classes) and min(labels, default=0) >= 0
    if not (fit and 1 <= examples <= held <= MOST_EXAMPLES):
        raise ValueError(
            f"it trains on {examples} examples and holds {shown(labels)} of each class"
        )
    if may < UNBOUNDED:
        raise ValueError(f"it says that {may} numbers are left of its budget")
    hashed = str(site.get("content", ""))
    left, most = held - examples, math.inf if may == UNBOUNDED else may
    shared = frozenset(str(site.get("share", "")).split()) & {*SHAREABLE}
    found = Member(node_id, name, partition, partitions, examples, left, labels, hashed, most)
    return replace(found, shared=shared)


Owner = SiteKey | int
"""Owner of a claim: a key, or a node whose key is not registered under a name."""


class Claims:
    """Names and partitions with their owners.

    A name belongs to the key that is registered under it. A node with a registered key also keeps
    everything else that it was first to claim. Any other node keeps its claims only while it is
    connected: after a restart it has another key, and is another node to Flower.

    Parameters
    ----------
    kept : mapping of str to SiteKey
        Value of `keys` before the run was interrupted.
    """

    def __init__(self, kept: Mapping[str, SiteKey]) -> None:
        self._keys: dict[int, SiteKey] = {}
        self._named: dict[str, list[SiteKey]] = {}
        self._holders: dict[str, Owner] = dict(kept)
        self._held: dict[Owner, set[str]] = {}
        for claim, key in kept.items():
            self._held.setdefault(key, set()).add(claim)

    @property
    def keys(self) -> dict[str, SiteKey]:
        """Names and partitions with their registered keys."""
        seen = {key.registered: key for key in reversed(self._keys.values())}
        held = {claim: key for claim, key in self._holders.items() if isinstance(key, SiteKey)}
        return held | {name: key for name, key in seen.items() if not _is_tied(name, held)}

    def see(self, nodes: Iterable[NodeInfo]) -> None:
        """Note the names that nodes' keys are registered under."""
        for node in nodes:
            if node.name and node.node_id not in self._keys:
                digest = hashlib.sha256(node.public_key).hexdigest()
                key = SiteKey(shown(node.name), digest)
                self._keys[node.node_id] = key
                self._named.setdefault(key.registered, []).append(key)

    def registered(self, node: int) -> str | None:
        """Return the name that a node's key is registered under."""
        return self._keys[node].registered if node in self._keys else None

    def owner(self, claim: str, node: int, is_there: Callable[[int], bool]) -> Owner | None:
        """Return the owner of a name or partition that a node claims; None: it is free.

        Nodes without a registered key own nothing unless they are there.
        """
        if _is_tied(claim, self._holders):
            return self._holders[claim]
        if named := self._named.get(claim):
            return self.of(node) if self.of(node) in named else named[0]
        holder = self._holders.get(claim)
        return holder if holder is None or isinstance(holder, SiteKey) or is_there(holder) else None

    def of(self, node: int) -> Owner:
        """Return a node as an owner."""
        return self._keys.get(node, node)

    def node(self, owner: Owner) -> int | None:
        """Return an owner's node; None for a key that has not been seen."""
        if isinstance(owner, int):
            return owner
        return next((node for node, key in self._keys.items() if key == owner), None)

    def give(self, claims: Iterable[str], node: int) -> None:
        """Give a node its claims, and take its earlier ones away."""
        own = self.of(node)
        for claim in self._held.pop(own, ()):
            if self._holders.get(claim) == own:
                del self._holders[claim]
        self._held[own] = set(claims)
        self._holders |= dict.fromkeys(claims, own)


def _is_tied(name: str, holders: Mapping[str, Owner]) -> bool:
    """Return whether a name is held by a key that is registered under it."""
    holder = holders.get(name)
    return isinstance(holder, SiteKey) and holder.registered == name


Holding = tuple[int, list[int]]
"""A site's number of training examples, and of examples of each class where it tells them."""


def holdings(run: str) -> dict[str, Holding]:
    """Return each site's examples in the newest run that counted it: this one, or an earlier one.

    Parameters
    ----------
    run
        The folder of a run, or none. The runs that it started from follow, as far as they are here.
    """
    found: dict[str, Holding] = {}
    while run != "none" and (user_path(run) / SETTINGS).is_file():
        folder = user_path(run)
        content = read_yaml(folder / SETTINGS)
        labels = dict(zip(content["sites"], content["label_counts"], strict=True))
        for line in reversed(read_rounds(folder)):
            for each in line.get(CLIENTS, []):
                name = each["site"]
                found.setdefault(name, (int(each["num-examples"]), labels.get(name, [])))
        run = read_settings(folder)["start_from"]
    return found


def left_out_of(
    settings: Settings, forgotten: Iterable[str], left_out: Iterable[str]
) -> Callable[[Member], str]:
    """Return the function that says why a run leaves a member out; "" if it does not.

    With `new_examples` that is also a site whose numbers are still those of the last run.
    """
    gone, without = frozenset(forgotten), frozenset(left_out)
    held = holdings(settings.start_from) if settings.new_examples else {}

    def why(member: Member) -> str:
        if member.name in gone:
            return f"the run has forgotten {member.name}"
        if member.name in without:
            return f"the run goes on without {member.name}"
        examples, labels = held.get(member.name, (-1, []))
        unknown = not (labels and member.label_counts)
        if member.num_examples == examples and (unknown or labels == member.label_counts):
            return f"{member.name} holds as many examples as in its last run, so none is new"
        return ""

    return why


def require_enough(settings: Settings, members: Iterable[Member]) -> None:
    """Raise a RunError unless the members hold `new_examples` that no run has counted.

    A site counts for at most 1/`min_replies` of them, whatever it claims.
    """
    wanted, said, counted = settings.new_examples, [], 0.0
    for member in members:
        held = member.num_examples + member.num_held_out
        counted += min(held, wanted / settings.min_replies)
        said.append(f"{member.name} {held}")
    if counted + 0.5 < wanted:
        told = f"{round(counted)} of {wanted} new examples"
        raise RunError(f"no run starts yet: {told} ({', '.join(said)})")
    if wanted:
        log(INFO, "%d new examples count, %d are enough: the run starts", counted, wanted)
