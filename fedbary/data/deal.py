"""Which examples of a data set go to clients, the server, holdouts and scoring: the deal.

Server and clients compute the same deal from the same settings; no data travel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedbary.data.grouping import Units, one_of_each
from fedbary.data.partition import draw_part, keep_for_server, partition, split_holdout
from fedbary.data.partitioners import ENDING, partition_by
from fedbary.errors import SettingError
from fedbary.seeds import derive_seed


@dataclass(frozen=True, eq=False)
class Shard:
    """One client's inputs and targets: what it trains on, and what it holds out.

    `independent` marks one held-out row of each group, (n,) bool; None where all rows count.
    `groups` are those of the rows that it trains on; None where each stands alone. `bear` is how
    many answers with products of columns the site's limits allow over all runs.
    """

    x: Tensor
    y: Tensor
    x_held_out: Tensor
    y_held_out: Tensor
    independent: Tensor | None = None
    groups: Tensor | None = None
    bear: float = math.inf


TEST_FRACTION = 0.1


@dataclass(frozen=True, eq=False)
class Split:
    """Rows to train on and rows to test on, int64 indices into a table."""

    train: Tensor
    test: Tensor

    @classmethod
    def where(cls, tested: np.ndarray) -> Split:
        """Return the split that tests the rows where a mask (N,) is true."""
        return cls(*(torch.from_numpy(np.flatnonzero(mask)) for mask in (~tested, tested)))


def prescribed(splits: Sequence[Split], number: int) -> Split | None:
    """Return the split of that number, from 0; None if the source prescribes none.

    Raises
    ------
    SettingError
        If there are splits and none of that number, or the number is negative.
    """
    if number in range(len(splits)):
        return splits[number]
    if splits or number < 0:
        last = f"0 to {len(splits) - 1}" if splits else "a whole number from 0"
        raise SettingError("split", number, last)
    return None


def tenth(count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw a tenth of the rows, one at least: a mask (count,)."""
    mask = np.zeros(count, dtype=bool)
    mask[rng.permutation(count)[: max(1, round(TEST_FRACTION * count))]] = True
    return mask


def tenth_of_each_class(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw a tenth of each class's rows: a mask (N,) for labels (N,).

    From a class with two rows or more at least one row is drawn and at least one is not, so that
    rare classes are trained on and tested. From a class of one row none is drawn.
    """
    mask = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        if len(rows) > 1:
            mask[rows[tenth(len(rows), rng)]] = True
    return mask


def checked_split(name: str, number: int, count: int, train: np.ndarray, test: np.ndarray) -> Split:
    """Return the split that row numbers of a table of `count` rows describe.

    Raises
    ------
    SettingError
        If a part is empty, the parts overlap, or a number names no row.
    """
    allowed = f"different whole numbers from 0 to {count - 1}, some to train on and some to test on"
    both = np.concatenate([np.ravel(train), np.ravel(test)])
    right = len(train) and len(test) and both.dtype.kind in "iu" and both.min() >= 0
    if not right or both.max() >= count or len(np.unique(np.ravel(test))) < np.size(test):
        raise SettingError(f"{name}: split {number}", _brief(both), allowed)
    if np.isin(test, train).any():
        shared = f"row {int(test[np.isin(test, train)][0])} in both parts"
        raise SettingError(f"{name}: split {number}", shared, allowed)
    return Split(*(torch.from_numpy(part.astype(np.int64)) for part in (train, test)))


def _brief(rows: np.ndarray) -> str:
    return f"{rows.min()} to {rows.max()}, {rows.dtype}" if rows.size else "no rows"


VALIDATION_FRACTION = 0.1


class Dealable(Protocol):
    """A data set that can be dealt, the same object throughout the process."""

    def __hash__(self) -> int: ...

    @property
    def examples(self) -> tuple[Tensor, Tensor]:
        """Inputs (N, …) and targets (N,) of which some or all are dealt."""

    @property
    def strata(self) -> Tensor:
        """Values that examples are dealt by, (N,): classes, or numbers for a few partitions."""

    @property
    def groups(self) -> Tensor | None:
        """The group of each example, (N,) int64; None where each stands alone."""

    def parted(self, split: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return the numbers of the training examples, and the test inputs and targets."""

    def tested_groups(self, split: int) -> Tensor | None:
        """Return the group of each test example; None where each stands alone."""

    def validation(self, targets: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw the training examples that validate: a mask (n,) for their strata (n,)."""


@dataclass(frozen=True)
class Deal:
    """Rules by which the examples of a set are dealt: whole groups, where there are some.

    A group counts as one example, of its commonest class. So the same draws serve rows and groups,
    and a fraction, or `min_examples`, is one of groups.

    Parameters
    ----------
    split : int or None
        Number of the split into training and test; None for a set with a single split.
    evaluate_on : str
        ``test``, or ``validation``: a tenth of the training examples, kept from all clients.
    partition, min_examples
        See `fedbary.data.partition.partition`.
    holdout : float
        Fraction of a client's own examples kept to score the global model on.
    seed : int
        The run's.
    train_fraction : float
        Fraction of the training examples that are used at all; validation draws from all of them.
    server_fraction : float
        Fraction of the used examples that the server keeps to learn from.
    partition_parameters : tuple of (str, value)
        Parameters of the partition, such as alpha; for a partitioner of flwr-datasets see
        `fedbary.data.partitioners.partition_by`.
    """

    split: int | None = None
    evaluate_on: str = "test"
    partition: str = "dirichlet"
    min_examples: int = 10
    holdout: float = 0.1
    seed: int = 0
    train_fraction: float = 1.0
    server_fraction: float = 0.0
    partition_parameters: tuple[tuple[str, Any], ...] = ()

    def derived(self, purpose: str, *indices: int) -> int:
        """Return the seed of a purpose, another one for each split."""
        seed = self.seed if self.split is None else derive_seed(self.seed, "split", self.split)
        return derive_seed(seed, purpose, *indices)


def tenth_of_all(targets: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw a tenth of the examples, one at least, whatever their targets: a mask (n,)."""
    mask = np.zeros(len(targets), dtype=bool)
    mask[rng.permutation(len(mask))[: max(1, int(VALIDATION_FRACTION * len(mask)))]] = True
    return mask


@lru_cache(maxsize=4)
def rows(held: Dealable, deal: Deal) -> tuple[Tensor, Tensor]:
    """Return the training rows to be dealt, and those that validate (none for ``test``).

    Raises
    ------
    SettingError
        If there is no such split, or no class has two training rows, one of them for validation.
    """
    train, _ = held.parted(deal.split or 0)
    if deal.evaluate_on == "test":
        return train, train[:0]
    rng = np.random.default_rng(deal.derived("validation"))
    units = Units.of(train.numpy(), held.groups)
    drawn = held.validation(units.strata(held.strata), rng)
    if not drawn.any() or drawn.all():
        allowed = "test, as no class has two training rows, or groups"
        raise SettingError("evaluate_on", deal.evaluate_on, allowed)
    kept = torch.from_numpy(drawn[units.unit])
    return train[~kept], train[kept]


@lru_cache(maxsize=4)
def dealt(held: Dealable, deal: Deal) -> tuple[Tensor, Tensor]:
    """Return the rows that clients may hold, and those that the server keeps to learn from."""
    units = Units.of(rows(held, deal)[0].numpy(), held.groups)
    used = draw_part(units.numbers, deal.train_fraction, deal.derived("train-fraction"))
    parts = keep_for_server(used, deal.server_fraction, deal.derived("server-data"))
    clients, server = (torch.from_numpy(units.rows_of(part)) for part in parts)
    return clients, server


def training_data(held: Dealable, deal: Deal) -> tuple[Tensor, Tensor]:
    """Return the inputs and targets of all clients together, in their own units."""
    return _taken(held, dealt(held, deal)[0])


@lru_cache(maxsize=4)
def evaluation_data(held: Dealable, deal: Deal) -> tuple[Tensor, Tensor]:
    """Return the inputs and targets that score models, in their own units."""
    if deal.evaluate_on == "test":
        return held.parted(deal.split or 0)[1]
    return _taken(held, rows(held, deal)[1])


def evaluation_groups(held: Dealable, deal: Deal) -> Tensor | None:
    """Return the group of each example that scores models; None where each stands alone."""
    if deal.evaluate_on == "test" or held.groups is None:
        return held.tested_groups(deal.split or 0)
    return held.groups[rows(held, deal)[1]]


@lru_cache(maxsize=4)
def client_rows(held: Dealable, deal: Deal, clients: int) -> tuple[np.ndarray, ...]:
    """For each client the numbers of its rows, largest client first.

    The partition treats all targets alike if they are not classes.

    Raises
    ------
    SettingError
        If there is no such partition, or it cannot be made.
    """
    units = Units.of(dealt(held, deal)[0].numpy(), held.groups)
    targets = units.strata(held.strata)
    if deal.partition.endswith(ENDING):
        parts = partition_by(
            deal.partition,
            targets,
            clients,
            deal.derived("partition"),
            min_examples=deal.min_examples,
            parameters=dict(deal.partition_parameters),
        )
    else:
        parts = partition(
            np.zeros(len(targets), np.int64) if targets.dtype.kind == "f" else targets,
            deal.partition,
            clients,
            deal.derived("partition"),
            min_examples=deal.min_examples,
            **dict(deal.partition_parameters),
        )
    return tuple(sorted(map(units.rows_of, parts), key=len, reverse=True))


def trained_rows(held: Dealable, deal: Deal, clients: int) -> Tensor:
    """Return the numbers of the rows that clients (0 for none) and the server train on."""
    parts = enumerate(client_rows(held, deal, clients) if clients else ())
    trained = [_apart(part, held.groups, deal, k)[0] for k, part in parts]
    return torch.cat([dealt(held, deal)[1], *trained])


def server_shard(held: Dealable, deal: Deal) -> Shard:
    """Return what the server keeps to learn from, in its own units."""
    x, y = _taken(held, dealt(held, deal)[1])
    return Shard(x, y, x[:0], y[:0])


@lru_cache(maxsize=1024)
def client_shard(held: Dealable, deal: Deal, clients: int, client: int) -> Shard:
    """Return what one client of a partition trains on and holds out, in its own units."""
    numbers = client_rows(held, deal, clients)[client]
    return _shard(*held.examples, held.groups, deal, numbers, client)


def site_shard(x: Tensor, y: Tensor, deal: Deal, key: int, groups: Tensor | None = None) -> Shard:
    """Return what a site trains on and holds out of inputs and targets of its own.

    `key` makes the draws of different sites differ. `groups` are those of the rows (N,).
    """
    return _shard(x, y, groups, deal, np.arange(len(y)), key)


def _taken(held: Dealable, numbers: Tensor) -> tuple[Tensor, Tensor]:
    x, y = held.examples
    return x[numbers], y[numbers]


def _shard(
    x: Tensor, y: Tensor, groups: Tensor | None, deal: Deal, numbers: np.ndarray, key: int
) -> Shard:
    train, held_out = _apart(numbers, groups, deal, key)
    drawn = None
    if groups is not None:
        drawn = one_of_each(groups[held_out], deal.derived("independent", key))
        groups = groups[train]
    return Shard(x[train], y[train], x[held_out], y[held_out], drawn, groups)


def _apart(
    numbers: np.ndarray, groups: Tensor | None, deal: Deal, key: int
) -> tuple[Tensor, Tensor]:
    """Return the rows that a client trains on, and those that it holds out."""
    units = Units.of(numbers, groups)
    parts = split_holdout(units.numbers, deal.holdout, deal.derived("holdout", key))
    train, held_out = (torch.from_numpy(units.rows_of(part)) for part in parts)
    return train, held_out
