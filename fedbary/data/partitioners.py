"""Partitions made by the partitioners of flwr-datasets, which need no Flower."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedbary.errors import SettingError
from fedbary.parts.imports import library, said

EXTRA = "partitioners"
"""The extra of this package that brings flwr-datasets."""

ENDING = "Partitioner"
"""Ending of its partitioners' names; ours do not have it."""


def partition_by(
    name: str,
    targets: np.ndarray,
    clients: int,
    seed: int,
    *,
    min_examples: int,
    parameters: Mapping[str, Any],
) -> list[np.ndarray]:
    """Deal examples, in an order drawn first, to clients by a partitioner; each to one at most.

    Parameters
    ----------
    name : str
        A class of ``flwr_datasets.partitioner``.
    targets : ndarray
        Classes or numbers, (N,): the column that it partitions by.
    clients, seed, min_examples
        Its ``num_partitions``, ``seed`` and ``min_partition_size``, where it has them; no client
        may hold fewer than ``min_examples``.
    parameters : mapping
        Its other arguments; None leaves a default.

    Returns
    -------
    list of ndarray
        Numbers of examples as `fedbary.data.partition.partition` returns them, the largest client
        first; a partitioner may leave some out.

    Raises
    ------
    SettingError
        flwr-datasets is not installed, or the partitioner raises an error.
    """
    partitioners = library("flwr_datasets.partitioner", EXTRA, "partition", name)
    datasets = library("datasets", EXTRA, "partition", name)
    order = np.random.default_rng(seed).permutation(len(targets))
    makes = getattr(partitioners, name)
    given = {
        "num_partitions": clients,
        "partition_by": "target",
        "seed": seed,
        "min_partition_size": min_examples,
        **{key: value for key, value in parameters.items() if value is not None},
    }
    takes = inspect.signature(makes).parameters
    try:
        deals = makes(**{key: value for key, value in given.items() if key in takes})
        deals.dataset = datasets.Dataset.from_dict({"target": targets[order], "row": order})
        parts = [np.sort(deals.load_partition(client)["row"]) for client in range(clients)]
    except Exception as error:  # noqa: BLE001 - code of others raises many kinds
        allowed = f"one that deals {len(targets)} examples to {clients} clients ({said(error)})"
        raise SettingError("partition", name, allowed) from None
    if (least := min(map(len, parts))) < min_examples:
        allowed = f"at most {least}, the least that {name} leaves a client"
        raise SettingError("min_examples", min_examples, allowed)
    return sorted(parts, key=len, reverse=True)
