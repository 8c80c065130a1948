"""The nodes that take no part, each with its reason."""

from __future__ import annotations


class NothingNew(ValueError):
    """The site is sound, and this run leaves it out."""


class Claimed(ValueError):
    """The node claims a name or a partition that is another's."""

    def __init__(self, claim: str, owner: str) -> None:
        super().__init__(f"it claims to be {claim}, which is {owner}")


class Refusals:
    """Nodes that answered and take no part."""

    def __init__(self) -> None:
        self._why: dict[int, ValueError] = {}

    @property
    def nodes(self) -> set[int]:
        """All of them."""
        return set(self._why)

    @property
    def sites(self) -> int:
        """Number of the federation's sites among them: not those that claim what is another's."""
        return sum(not isinstance(why, Claimed) for why in self._why.values())

    @property
    def are_faults(self) -> bool:
        """Whether there are some, and each has a fault; a site that has nothing new has none."""
        return bool(self._why) and not any(isinstance(w, NothingNew) for w in self._why.values())

    @property
    def reason(self) -> str:
        """The reason of the first; "" without any."""
        return next(map(str, self._why.values()), "")

    def add(self, node: int, why: ValueError) -> bool:
        """Note a node; return whether the reason is news."""
        said = str(self._why.get(node, ""))
        self._why[node] = why
        return str(why) != said

    def drop(self, node: int) -> None:
        """Forget a node that takes part now."""
        self._why.pop(node, None)
