"""Which rows train, which are held out, which score: of one set for all, or of a site's own.

Server and clients compute the same deal from the same settings; no data travel.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from fedbary.data.partition import keep_for_server, partition, split_holdout
from fedbary.data.shard import Shard
from fedbary.data.tables import Labelled
from fedbary.data.tables._split import tenth_of_each_class
from fedbary.errors import SettingError
from fedbary.seeds import derive_seed


@dataclass(frozen=True)
class Deal:
    """How the rows of a set are dealt.

    Parameters
    ----------
    split : int
        Which split into training and test, prescribed or drawn by class.
    evaluate_on : str
        ``test``, or ``validation``: a tenth of each class's training rows, kept from all clients.
    partition, alpha, classes_per_client, min_examples
        See `fedbary.data.partition.partition`.
    holdout : float
        Fraction of a client's own rows kept to score the global model on.
    seed : int
        The run's.
    server_fraction : float
        Fraction of the training rows that the server keeps to learn from.
    """

    split: int = 0
    evaluate_on: str = "test"
    partition: str = "dirichlet"
    alpha: float = 0.5
    classes_per_client: int = 2
    min_examples: int = 10
    holdout: float = 0.1
    seed: int = 0
    server_fraction: float = 0.0

    def derived(self, purpose: str, *indices: int) -> int:
        """Return the seed of a purpose, another one for each split."""
        return derive_seed(derive_seed(self.seed, "split", self.split), purpose, *indices)


def dealt(table: Labelled, deal: Deal) -> tuple[Tensor, Tensor]:
    """Return the rows that clients may hold, and those that the server keeps to learn from."""
    pool, seed = rows(table, deal)[0].numpy(), deal.derived("server-data")
    held, kept = keep_for_server(pool, deal.server_fraction, seed)
    return torch.from_numpy(held), torch.from_numpy(kept)


@lru_cache(maxsize=4)
def rows(table: Labelled, deal: Deal) -> tuple[Tensor, Tensor]:
    """Return the rows to be dealt, and those on which models are scored.

    Raises
    ------
    SettingError
        If there is no such split, or no class has two training rows, one of them for validation.
    """
    split = table.split(deal.split)
    if deal.evaluate_on == "test":
        return split.train, split.test
    rng = np.random.default_rng(deal.derived("validation"))
    kept = torch.from_numpy(tenth_of_each_class(table.y[split.train].numpy(), rng))
    if not kept.any():
        allowed = "test, as no class has two training rows"
        raise SettingError("evaluate_on", deal.evaluate_on, allowed)
    return split.train[~kept], split.train[kept]


def evaluation_data(table: Labelled, deal: Deal) -> tuple[Tensor, Tensor]:
    """Return the features (N, D), in their own units, and labels (N,) that score models."""
    scored = rows(table, deal)[1]
    return table.x[scored], table.y[scored]


@lru_cache(maxsize=4)
def client_rows(table: Labelled, deal: Deal, clients: int) -> tuple[np.ndarray, ...]:
    """For each client the numbers of its rows, largest client first.

    Raises
    ------
    SettingError
        If there is no such partition, or no such deal.
    """
    pool = dealt(table, deal)[0]
    parts = partition(
        table.y[pool].numpy(),
        deal.partition,
        clients,
        deal.derived("partition"),
        alpha=deal.alpha,
        classes_per_client=deal.classes_per_client,
        min_examples=deal.min_examples,
    )
    return tuple(pool.numpy()[part] for part in parts)


def server_shard(table: Labelled, deal: Deal) -> Shard:
    """Return the rows that the server keeps to learn from, in their own units."""
    kept = dealt(table, deal)[1]
    return Shard(table.x[kept], table.y[kept], table.x[:0], table.y[:0])


def client_shard(table: Labelled, deal: Deal, clients: int, client: int) -> Shard:
    """Return what one client of a partition trains on and holds out, in its own units."""
    return _shard(table, deal, client_rows(table, deal, clients)[client], client)


def site_shard(table: Labelled, deal: Deal, key: int) -> Shard:
    """Return what a site with a table of its own trains on and holds out, in its own units.

    `key` tells the sites' draws apart.
    """
    return _shard(table, deal, np.arange(len(table.y)), key)


def _shard(table: Labelled, deal: Deal, held: np.ndarray, key: int) -> Shard:
    parts = split_holdout(held, deal.holdout, deal.derived("holdout", key))
    train, held_out = (torch.from_numpy(part) for part in parts)
    return Shard(table.x[train], table.y[train], table.x[held_out], table.y[held_out])
