"""A robust rule: a function of all clients' posteriors side by side.

Robust rules count every client alike: weights are claims, and a hostile client may claim any
weight. A weight of 0 leaves a client out, as it does under every rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from fedbary.errors import SettingError


def num_hostile(fraction: float, clients: int) -> int:
    """Return the largest number of hostile clients, ⌊fraction · clients⌋, less than half."""
    return max(0, min(int(fraction * clients + 1e-9), (clients - 1) // 2))


@dataclass(frozen=True)
class RobustRule:
    """The common part of both kinds of robust rule, `CoordinateRule` and `SelectionRule`.

    Parameters
    ----------
    name : str
        The name it goes by in `RULES`.
    trim_fraction : float
        The part of the clients that may be hostile, from 0 to below ½.
    counts_hostile : bool
        True: the rule depends on `trim_fraction`.

    Raises
    ------
    SettingError
        If the fraction is out of its range.
    """

    name: str
    trim_fraction: float = field(default=0.2, kw_only=True)
    counts_hostile: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        if not 0 <= self.trim_fraction < 0.5:
            raise SettingError("trim_fraction", self.trim_fraction, "from 0 to below 0.5")

    @property
    def is_mean(self) -> bool:
        """Return whether equal posteriors aggregate to themselves, as under every robust rule."""
        return True

    def is_plain(self, clients: int) -> bool:
        """Return whether ⌊trim_fraction · clients⌋ is 0, so that the rule gives no protection."""
        return self.counts_hostile and self.num_hostile(clients) == 0

    def num_hostile(self, clients: int) -> int:
        """Return the largest number of hostile clients, ⌊trim_fraction · clients⌋."""
        return num_hostile(self.trim_fraction, clients)


@dataclass(frozen=True)
class CoordinateRule(RobustRule):
    """A rule that takes each coordinate by itself: every mean, and every log-variance.

    Parameters
    ----------
    across : callable
        Takes the clients' values [clients, weights] and the number of hostile clients. Returns the
        aggregate's values [weights]. It must not change its argument.
    """

    across: Callable[[Tensor, int], Tensor]


@dataclass(frozen=True)
class SelectionRule(RobustRule):
    """A rule that selects clients by how far apart their posteriors lie, and averages those.

    Distances are Wasserstein-2, and the average is the Wasserstein-2 barycentre with equal
    weights: Euclidean distance and arithmetic mean in the coordinates (m, √v).

    Parameters
    ----------
    select : callable
        Takes the squared distances [clients, clients] and the number of hostile clients. Returns
        the indices of the selected clients. It raises a SettingError if the clients are too few.
    """

    select: Callable[[Tensor, int], Sequence[int]]

    def weights(self, squared_distances: Tensor) -> list[float]:
        """Return each client's weight in the average: equal for the selected, 0 for others."""
        clients = len(squared_distances)
        selected = set(self.select(squared_distances, self.num_hostile(clients)))
        return [1 / len(selected) if k in selected else 0.0 for k in range(clients)]
