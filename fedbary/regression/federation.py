"""A regression's data and network as the settings describe them, in their own units.

Server and clients compute the same split from the same settings; no data travel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from fedbary.data.partition import keep_for_server, partition
from fedbary.data.shard import Shard
from fedbary.data.sites import Site
from fedbary.data.tables import Table, load
from fedbary.errors import SettingError
from fedbary.federation import VALIDATION_FRACTION
from fedbary.regression.networks import Regressor
from fedbary.seeds import derive_seed
from fedbary.settings.config import Settings


@dataclass(frozen=True)
class Columns:
    """What all sites must agree on: the features, by name, in their order."""

    features: tuple[str, ...]

    @property
    def classes(self) -> tuple[str, ...]:
        """None: a number is predicted."""
        return ()

    def config(self) -> dict[str, list[str]]:
        """Return what a ConfigRecord holds of it."""
        return {"features": list(self.features)}

    @staticmethod
    def from_config(config: Mapping[str, Sequence[str]]) -> Columns:
        """Return the columns that a ConfigRecord describes."""
        return Columns(tuple(map(str, config["features"])))


def seed_of(settings: Settings, purpose: str, *indices: int) -> int:
    """Return the seed of a purpose, another one for each split."""
    return derive_seed(derive_seed(settings.seed, "split", settings.split), purpose, *indices)


def load_table(settings: Settings) -> Table:
    """Return the data set, read once per process."""
    return load(settings.dataset, settings.data_dir, settings.target)


def task_of(settings: Settings) -> Columns:
    """Return the columns of the data set that the settings name."""
    return Columns(load_table(settings).features)


def _dealt(settings: Settings) -> tuple[Tensor, Tensor]:
    """Return the rows that clients may hold, and those that the server keeps to learn from."""
    pool, seed = _rows(settings)[0].numpy(), seed_of(settings, "server-data")
    held, kept = keep_for_server(pool, settings.server_fraction, seed)
    return torch.from_numpy(held), torch.from_numpy(kept)


def _rows(settings: Settings) -> tuple[Tensor, Tensor]:
    """Return the rows to be dealt, and those on which models are scored."""
    split = load_table(settings).split(settings.split)
    if settings.evaluate_on == "test":
        return split.train, split.test
    order = np.random.default_rng(seed_of(settings, "validation")).permutation(len(split.train))
    kept = max(1, int(len(order) * VALIDATION_FRACTION))
    return split.train[np.sort(order[kept:])], split.train[np.sort(order[:kept])]


def training_data(settings: Settings) -> tuple[Tensor, Tensor]:
    """Return the features (n, D) and targets (n,) of all clients together."""
    table, rows = load_table(settings), _dealt(settings)[0]
    return table.x[rows], table.y[rows]


def server_shard(settings: Settings) -> Shard:
    """Return the training rows that the server keeps to learn from."""
    table, rows = load_table(settings), _dealt(settings)[1]
    x, y = table.x[rows], table.y[rows]
    return Shard(x, y, x[:0], y[:0])


def evaluation_data(settings: Settings) -> tuple[Tensor, Tensor]:
    """Return the features (N, D) and targets (N,) on which models are scored."""
    table, rows = load_table(settings), _rows(settings)[1]
    return table.x[rows], table.y[rows]


@lru_cache(maxsize=4)
def client_rows(settings: Settings, clients: int) -> tuple[np.ndarray, ...]:
    """For each client the numbers of its rows among the training rows, largest client first."""
    return tuple(
        partition(
            np.zeros(len(_dealt(settings)[0]), np.int64),
            settings.partition,
            clients,
            seed_of(settings, "partition"),
            alpha=settings.alpha,
            min_examples=settings.min_examples,
        )
    )


def site_data(settings: Settings, site: Site, task: Columns) -> tuple[Tensor, Tensor]:
    """Return the features (n, D) and targets (n,) that a site trains on.

    Raises
    ------
    SettingError
        If its columns are not those of the task.
    """
    if site.partition is None:
        table = load(site.data_path, settings.data_dir, settings.target)
        x, y = table.x, table.y
    else:
        table = load_table(settings)
        x, y = training_data(settings)
        rows = client_rows(settings, site.partitions)[site.partition]
        x, y = x[rows], y[rows]
    if table.features != task.features:
        allowed = f"the server's: {', '.join(task.features)}"
        raise SettingError(f"{table.name}: features", ", ".join(table.features), allowed)
    return x, y


def make_model(settings: Settings, task: Columns) -> Regressor:
    """Return the network, initialised from the seed; one for squared errors has no noise."""
    noise = "none" if settings.trains_on_squares else settings.noise
    hidden = settings.hidden_units if settings.model == "mlp" else 0
    model = Regressor(len(task.features), hidden, settings.bayesian_layers, noise)  # type: ignore
    model.reset(settings.init_log_var, seed_of(settings, "model"))
    return model
