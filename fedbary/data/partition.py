"""Partitions: the deal of the training examples to the clients."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from types import MappingProxyType

import numpy as np

from fedbary.errors import SettingError
from fedbary.parts.parameters import Checked, Count, Positive

DRAWS = 1000


@dataclass(frozen=True)
class Skew(Checked):
    """Parameters of shares from a Dirichlet distribution.

    Parameters
    ----------
    alpha
        Concentration of the Dirichlet shares; with a smaller one clients differ more.
    """

    alpha: Positive = 0.5


@dataclass(frozen=True)
class FewClasses(Checked):
    """Parameters of a deal of whole classes.

    Parameters
    ----------
    classes_per_client
        Number of classes of a client.
    """

    classes_per_client: Count = 2


@dataclass(frozen=True)
class Even(Checked):
    """An even deal has no parameters."""


SCHEMES: Mapping[str, type[Checked]] = MappingProxyType(
    {"dirichlet": Skew, "iid": Even, "classes": FewClasses, "quantity": Skew}
)
"""Parameters of each partition, by its name."""

PARTITIONS = tuple(SCHEMES)


def partition(
    labels: np.ndarray,
    scheme: str,
    clients: int,
    seed: int,
    *,
    alpha: float = Skew.alpha,
    classes_per_client: int = FewClasses.classes_per_client,
    min_examples: int = 10,
) -> list[np.ndarray]:
    """Deal every example to exactly one client.

    Schemes, for N examples and K clients:

    ``dirichlet``
        The image protocol of BA-BFL. For each class the clients' shares are drawn from
        Dirichlet(alpha). A client that already holds N/K examples or more gets none; the other
        shares are renormalised. Everything is drawn again until every client has ``min_examples``.
    ``iid``
        Examples shuffled and dealt evenly; sizes differ by one at most.
    ``classes``
        Each client gets ``classes_per_client`` classes. Every class has a client, and classes have
        equally many clients (give or take one). A class is divided evenly among its clients.
    ``quantity``
        Every client gets ``min_examples``, and the rest is dealt by shares from Dirichlet(alpha).
        Labels are iid.

    Parameters
    ----------
    labels : ndarray
        Labels, (N,), integers.
    scheme : str
        One of `PARTITIONS`.
    clients : int
        K, the number of clients.
    seed : int
        The same seed deals the same way.
    alpha : float
        Concentration of the Dirichlet shares (``dirichlet``, ``quantity``): the smaller, the more
        the clients differ.
    classes_per_client : int
        Classes of a client (``classes``).
    min_examples : int
        The least number of examples of a client.

    Returns
    -------
    list of ndarray
        K index arrays into ``labels``, disjoint, together all of 0..N-1, each in ascending order.
        **Clients are numbered by size, the largest first**: a simulation runs clients in that
        order, and a round is shorter if the longest work starts first.

    Raises
    ------
    SettingError
        A setting is out of its range, or no such deal exists or was found.

    References
    ----------
    The shares and the N/K rule are those of the public code of BA-BFL and of Q. Li et al.,
    Federated Learning on Non-IID Data Silos, ICDE 2022.
    """
    if scheme not in PARTITIONS:
        raise SettingError("partition", scheme, ", ".join(PARTITIONS))
    classes, class_sizes = np.unique(labels, return_inverse=True, return_counts=True)[1:]
    total = len(classes)
    _check(clients >= 1, "clients", clients, "an integer of at least 1")
    _check(min_examples >= 1, "min_examples", min_examples, "an integer of at least 1")
    most = f"at most the {total} examples, or groups, divided by min_examples={min_examples}"
    _check(clients * min_examples <= total, "clients", clients, most)
    rng = np.random.default_rng(seed)

    if scheme in ("dirichlet", "quantity"):
        _check(isfinite(alpha) and alpha > 0, "alpha", alpha, "a finite number above 0")
    if scheme == "iid":
        owner = rng.permutation(np.arange(total) % clients)
    elif scheme == "quantity":
        shares = rng.dirichlet(np.full(clients, alpha))
        sizes = min_examples + _cut(shares, total - clients * min_examples)
        owner = rng.permutation(np.repeat(np.arange(clients), sizes))
    elif scheme == "dirichlet":
        table = _redraw(
            lambda: _dirichlet_table(class_sizes, clients, alpha, rng),
            min_examples,
            ("alpha", alpha, f"a larger alpha or fewer clients than {clients}"),
        )
        owner = _owner(classes, table, rng)
    else:
        least = -(-len(class_sizes) // clients)
        _check(
            least <= classes_per_client <= len(class_sizes),
            "classes_per_client",
            classes_per_client,
            f"{least} to {len(class_sizes)} for {len(class_sizes)} classes and {clients} clients",
        )
        table = _redraw(
            lambda: _classes_table(class_sizes, clients, classes_per_client, rng),
            min_examples,
            ("classes_per_client", classes_per_client, f"more, or fewer clients than {clients}"),
        )
        owner = _owner(classes, table, rng)
    sizes = np.bincount(owner, minlength=clients)
    parts = np.split(np.argsort(owner, kind="stable"), np.cumsum(sizes)[:-1])
    return [parts[client] for client in np.argsort(-sizes, kind="stable")]


def keep_for_server(pool: np.ndarray, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Split sorted indices into those that clients may hold and those that the server keeps.

    Raises
    ------
    SettingError
        If a fraction above 0 leaves the server or the clients nothing.
    """
    kept = round(fraction * len(pool))
    if fraction > 0 and not 0 < kept < len(pool):
        allowed = f"0, or a part of the {len(pool)} training examples that leaves both some"
        raise SettingError("server_fraction", fraction, allowed)
    order = np.random.default_rng(seed).permutation(len(pool))
    return pool[np.sort(order[kept:])], pool[np.sort(order[:kept])]


def draw_part(pool: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """Draw a part of sorted indices; of a larger part the same seed draws these and others.

    Raises
    ------
    SettingError
        If the part is empty.
    """
    count = round(fraction * len(pool))
    if count == 0:
        allowed = f"a part of the {len(pool)} training examples that leaves some"
        raise SettingError("train_fraction", fraction, allowed)
    return pool[np.sort(np.random.default_rng(seed).permutation(len(pool))[:count])]


def split_holdout(indices: np.ndarray, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Hold out a random share of a client's examples.

    Parameters
    ----------
    indices : ndarray
        The client's examples, (n,).
    fraction : float
        The share to hold out, in [0, 1), rounded to whole examples. Above 0, and given two
        examples or more, both sides get one at least.
    seed : int
        The same seed splits the same way.

    Returns
    -------
    train, held_out : ndarray
        The two sides, disjoint, each in the order of ``indices``.

    Raises
    ------
    SettingError
        The fraction is out of its range.
    """
    _check(0 <= fraction < 1, "holdout", fraction, "a fraction from 0 up to, not including, 1")
    aside = np.zeros(len(indices), dtype=bool)
    if fraction > 0 and len(indices) > 1:
        count = min(max(round(fraction * len(indices)), 1), len(indices) - 1)
        aside[np.random.default_rng(seed).permutation(len(indices))[:count]] = True
    return indices[~aside], indices[aside]


def _check(holds: bool, setting: str, value: object, allowed: str) -> None:
    if not holds:
        raise SettingError(setting, value, allowed)


def _cut(shares: np.ndarray, total: int) -> np.ndarray:
    """Return whole numbers in proportion to shares that sum to one, the rest to the last."""
    edges = (np.cumsum(shares)[:-1] * total).astype(np.int64)
    return np.diff(edges, prepend=0, append=total)


def _redraw(
    draw: Callable[[], np.ndarray], min_examples: int, remedy: tuple[str, object, str]
) -> np.ndarray:
    """Return the first (classes, clients) table that gives every client enough examples."""
    for _ in range(DRAWS):
        table = draw()
        if table.sum(0).min() >= min_examples:
            return table
    setting, value, allowed = remedy
    if min_examples > 1:
        allowed += f", or a min_examples below {min_examples}"
    raise SettingError(setting, value, f"{allowed}: {DRAWS} draws left a client with too few")


def _dirichlet_table(
    class_sizes: np.ndarray, clients: int, alpha: float, rng: np.random.Generator
) -> np.ndarray:
    # Dirichlet shares with some set to 0 and renormalised are Dirichlet shares of the others;
    # drawn as such they cannot all underflow to 0.
    table = np.zeros((len(class_sizes), clients), dtype=np.int64)
    held = np.zeros(clients, dtype=np.int64)
    for row, size in zip(table, class_sizes, strict=True):
        below = held * clients < class_sizes.sum()
        row[below] = _cut(rng.dirichlet(np.full(below.sum(), alpha)), size)
        held += row
    return table


def _classes_table(
    class_sizes: np.ndarray, clients: int, classes_per_client: int, rng: np.random.Generator
) -> np.ndarray:
    holds = np.zeros((len(class_sizes), clients), dtype=bool)
    for client in range(clients):
        fewest_first = np.lexsort((rng.random(len(class_sizes)), holds.sum(1)))
        holds[fewest_first[:classes_per_client], client] = True
    rank = holds.cumsum(1) - 1
    even, left = np.divmod(class_sizes, holds.sum(1))
    return np.where(holds, even[:, None] + (rank < left[:, None]), 0)


def _owner(classes: np.ndarray, table: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the client of every example, (N,), dealing each class as the table says."""
    shuffled = rng.permutation(len(classes))
    by_class = shuffled[np.argsort(classes[shuffled], kind="stable")]
    owner = np.empty(len(classes), dtype=np.int64)
    owner[by_class] = np.repeat(np.tile(np.arange(table.shape[1]), len(table)), table.ravel())
    return owner
