"""Robust rules: functions of all clients' posteriors side by side.

Robust rules count every client alike: weights are claims, and a hostile client may claim any
weight. A weight of 0 leaves a client out, as it does under every rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import torch
from torch import Tensor

from fedbary.errors import SettingError

_MOST = 32
"""The most clients that a network orders in less time than a sort of each weight."""


def ordered(stack: np.ndarray) -> Sequence[np.ndarray]:
    """Return the rows of a stack [clients, weights] sorted by column, as `numpy.sort` does.

    For few clients it compares whole rows, pair by pair, by Batcher's odd-even merge sort. A
    minimum and a maximum of long rows take less time than a sort of many short columns.

    Source: Batcher, Sorting networks and their applications, AFIPS 1968.
    """
    if len(stack) > _MOST or np.isnan(stack).any():
        return list(np.sort(stack, axis=0))
    rows = list(stack.copy())
    low = np.empty_like(rows[0])
    for one, other in _pairs(len(rows)):
        np.minimum(rows[one], rows[other], out=low)
        np.maximum(rows[one], rows[other], out=rows[other])
        rows[one], low = low, rows[one]
    return rows


@cache
def _pairs(count: int) -> list[tuple[int, int]]:
    """Return the pairs that, each put in order, sort so many values."""
    return list(_odd_even_merge(count))


def _odd_even_merge(count: int) -> Iterator[tuple[int, int]]:
    sorted_run = 1
    while sorted_run < count:
        step = sorted_run
        while step:
            for start in range(step % sorted_run, count - step, 2 * step):
                for one in range(start, min(start + step, count - step)):
                    if one // (2 * sorted_run) == (one + step) // (2 * sorted_run):
                        yield one, one + step
            step //= 2
        sorted_run *= 2


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


def trimmed_mean(stack: Tensor, hostile: int) -> Tensor:
    """Return the mean over the clients [clients, weights] → [weights] without the extremes."""
    ascending = ordered(stack.numpy(force=True))
    kept = ascending[hostile : len(ascending) - hostile]
    return torch.from_numpy(sum(kept[1:], kept[0]) / len(kept)).to(stack.device)


TrimmedMean = CoordinateRule("TrimmedMean", trimmed_mean)
"""Trimmed mean: for each coordinate, the mean without its h lowest and its h highest values.

Yin et al. (2018), Definition 2, with h = ⌊trim_fraction · K⌋ of K clients, on means and
log-variances. The mean of the remaining log-variances is the geometric mean of variances, as in
AALV. With at most h hostile clients every coordinate lies within the range of the honest ones.

It assumes at most h hostile clients, and honest ones that are alike. Every client counts once,
whatever number of examples it claims.

Messages: the posterior, once each way: two numbers per Gaussian weight.

Cost: the server sorts the clients' values of each weight.

Use it in place of the median if you know how many clients may be hostile: it averages over more of
the honest ones.

Reference: Yin, Chen, Ramchandran and Bartlett, Byzantine-Robust Distributed Learning: Towards
Optimal Statistical Rates, ICML 2018.
"""


def median(stack: Tensor) -> Tensor:
    """Return the median over the clients, [clients, weights] → [weights]."""
    return trimmed_mean(stack, (len(stack) - 1) // 2)


def _median(stack: Tensor, hostile: int) -> Tensor:
    return median(stack)


Median = CoordinateRule("Median", _median, counts_hostile=False)
"""Median of each coordinate: of the means, and of the log-variances.

Yin et al. (2018), Definition 1. Medians of log-variances, variances, standard deviations and
precisions agree. For an even number of clients the median is the mean of the two middle values. For
variances that is their geometric mean. If less than half of the clients are hostile, every
coordinate lies within the range of the honest ones.

It assumes that most clients are honest and alike. It does not need the number of hostile clients.
Every client counts once, whatever number of examples it claims.

Messages: the posterior, once each way: two numbers per Gaussian weight.

Cost: the server sorts the clients' values of each weight.

Use it against clients whose values lie far from the others'. It slows learning if clients differ.
It hardly tells a client that flips signs from an honest but unusual one.

Reference: Yin, Chen, Ramchandran and Bartlett, Byzantine-Robust Distributed Learning: Towards
Optimal Statistical Rates, ICML 2018.
"""


def multi_krum(squared_distances: Tensor, hostile: int) -> list[int]:
    """Return the indices of the selected clients.

    Raises
    ------
    SettingError
        If some are to be left out of fewer than 2 · hostile + 3 clients.
    """
    clients = len(squared_distances)
    if hostile == 0:
        return list(range(clients))
    if clients < 2 * hostile + 3:
        allowed = f"{2 * hostile + 3} or more for MultiKrum to leave out {hostile}"
        raise SettingError("number of posteriors", clients, allowed)
    closest = squared_distances.sort(1).values[:, 1 : clients - hostile - 1]
    order = closest.sum(1).argsort(stable=True)
    return order[: clients - hostile].tolist()


MultiKrum = SelectionRule("MultiKrum", multi_krum)
"""Multi-Krum: the mean of the K − h clients that lie closest to their neighbours.

The score of a client is the sum of its squared distances to the K − h − 2 others closest to it,
with h = ⌊trim_fraction · K⌋ (Blanchard et al., 2017, section 4). The rule leaves out the h clients
with the highest scores. Distances are Wasserstein-2, √Σ [(m − m′)² + (√v − √v′)²] over all tensors;
the mean is the Wasserstein-2 barycentre. The paper's guarantee is for a single selected client and
needs K ≥ 2h + 3. Averaging K − h clients is the usual practice. It keeps every honest client if the
hostile ones lie far away.

It assumes at most h hostile clients of K ≥ 2h + 3, and that honest clients are closer to one
another than to hostile ones. Every selected client counts once.

Messages: the posterior, once each way: two numbers per Gaussian weight.

Cost: the server makes two passes over the replies. The first computes K (K − 1)/2 distances.

Use it against clients whose whole replies are false. It also leaves out unusual honest clients. If
each client holds two classes, that costs more than an attack does.

Reference: Blanchard, El Mhamdi, Guerraoui and Stainer, Machine Learning with Adversaries: Byzantine
Tolerant Gradient Descent, NIPS 2017.
"""
