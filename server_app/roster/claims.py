"""Owners of sites' names and partitions: keys that are registered under a name, or nodes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping

from fedbary.runs.sites import SiteKey
from fedbary.texts import shown
from strategies.internals import NodeInfo

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
