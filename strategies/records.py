"""Posteriors in Flower's records: read, written, and aggregated from bytes into bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from functools import reduce

import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor

from fedbary.aggregation import RobustRule, Rule, SelectionRule
from fedbary.aggregation.bound import check_ratio
from fedbary.aggregation.buffers import aggregate_buffer
from fedbary.aggregation.reals import flat_reals, is_continuous
from fedbary.aggregation.stack import (
    Stack,
    aggregate_stack,
    squared_distances,
    stack_size,
    stacked,
)
from fedbary.aggregation.sums import PIECE, Sums, normalised
from fedbary.gaussian import Posterior

from .arrays import BlankArray, array_from_tensor, tensor_from_array
from .conventions import Convention
from .limits import scale_from
from .workers import workers


def posterior_from_arrays(record: ArrayRecord, convention: Convention) -> Posterior:
    """Read a posterior whose scales are in the convention's names and unit.

    A Gaussian tensor goes by `convention.name` of its mean's key, others by their key. Tensors
    share the record's bytes where they can, and must not be written to.

    Raises
    ------
    ValueError
        If an array cannot be read, a scale has no mean, or two tensors bear one name.
    """
    pairs = convention.pairs(record.keys())
    mean: dict[str, Tensor] = {}
    log_var: dict[str, Tensor] = {}
    for key in _means(record, pairs):
        name = convention.name(key) if key in pairs else key
        if name in mean:
            raise ValueError(f"two tensors of the record are named {name!r}")
        mean[name] = tensor_from_array(record[key])
        if key in pairs:
            log_var[name] = convention.to_log_var(tensor_from_array(record[pairs[key]]))
    return Posterior(mean, log_var)


def arrays_from_posterior(
    posterior: Posterior, convention: Convention, like: ArrayRecord
) -> ArrayRecord:
    """Write a posterior with the keys, in the order, of the record `like`.

    The inverse of `posterior_from_arrays`.

    Raises
    ------
    ValueError
        If `like` asks for a tensor that the posterior does not have.
    """
    pairs = convention.pairs(like.keys())
    arrays: dict[str, Array] = {}
    for key in _means(like, pairs):
        name = convention.name(key) if key in pairs else key
        if name not in posterior.mean or (key in pairs) != (name in posterior.log_var):
            kind = "Gaussian" if key in pairs else "deterministic"
            raise ValueError(f"the posterior has no {kind} tensor {name!r} for array {key!r}")
        arrays[key] = array_from_tensor(posterior.mean[name])
        if key in pairs:
            scale = convention.from_log_var(posterior.log_var[name])
            arrays[pairs[key]] = array_from_tensor(scale)
    return ArrayRecord({key: arrays[key] for key in like})


def aggregate_records(
    rule: Rule | RobustRule,
    records: Sequence[ArrayRecord],
    weights: Sequence[float],
    convention: Convention,
    max_precision_ratio: float | None = None,
) -> ArrayRecord:
    """Aggregate records as `fedbary.aggregation.aggregate` does posteriors, but faster.

    Each tensor is worked through in pieces that fit the cache, from the records' bytes into the
    result's, in float32 where the arrays are no wider (see `Sums`), on as many threads as torch
    has. The extra memory is the result's, whatever the number of records.

    Parameters
    ----------
    rule : Rule or RobustRule
        The rule for Gaussian tensors; a robust one's is for all.
    records : sequence of ArrayRecord
        One per client, all with the keys, shapes and dtypes of the first, log-variances within
        ±80; none is changed.
    weights : sequence of float
        One per client: finite, none negative, not all 0; any scale.
    convention : Convention
        Which arrays are Gaussian, and the unit of their scales.
    max_precision_ratio : float, optional
        The most that a precision may be of the clients' median; see `fedbary.aggregation.bound`.

    Returns
    -------
    ArrayRecord
        The aggregate, every array written anew, with the keys in the order of the first record.
        Integer and bool arrays are the clients' mean, rounded, or their median under a robust
        rule; see `aggregate_buffer`.

    Raises
    ------
    SettingError
        If the weights or the ratio are not allowed, or the records too few for the rule.
    """
    check_ratio(max_precision_ratio)
    shares = normalised(weights)
    counted = [record for record, share in zip(records, shares, strict=True) if share > 0]
    shares = [share for share in shares if share > 0]
    pairs = convention.pairs(records[0].keys())
    arrays: dict[str, Array] = {}
    tensors: dict[tuple[str, ...], _Tensor] = {}
    for key in _means(records[0], pairs):
        keys: tuple[str, ...] = (key, pairs[key]) if key in pairs else (key,)
        clients = [[tensor_from_array(record[k]) for k in keys] for record in counted]
        if is_continuous(clients[0][0]):
            tensors[keys] = _Tensor(clients, convention, rule, max_precision_ratio)
        else:
            (buffer,) = zip(*clients, strict=True)
            arrays[key] = array_from_tensor(aggregate_buffer(rule, buffer, shares))
    with workers() as pool:
        if isinstance(rule, SelectionRule):
            parts = (part for tensor in tensors.values() for part in tensor.distances(pool))
            shares = rule.weights(sum(parts, torch.zeros(len(shares), len(shares))))
        for keys, tensor in tensors.items():
            arrays |= zip(keys, tensor.aggregate(shares, pool), strict=True)
    return ArrayRecord({key: arrays[key] for key in records[0]})


def _means(record: ArrayRecord, pairs: dict[str, str]) -> list[str]:
    """Return the keys of a record, in order, that are not those of scales."""
    scales = set(pairs.values())
    return [key for key in record if key not in scales]


class _Tensor:
    """One tensor, given as each client's [mean, scale], or [mean] if deterministic, in pieces."""

    def __init__(
        self,
        clients: list[list[Tensor]],
        convention: Convention,
        rule: Rule | RobustRule,
        max_precision_ratio: float | None,
    ) -> None:
        self._like = clients[0]
        self._convention = convention
        self._rule = rule
        self._max_precision_ratio = max_precision_ratio
        self._streamed = rule if isinstance(rule, Rule) and max_precision_ratio is None else None
        self._size = PIECE if self._streamed else stack_size(len(clients))
        self._clients = [[flat_reals(t).split(self._size) for t in tensors] for tensors in clients]
        self._count = len(self._clients[0][0])
        dtypes = [tensor.dtype.to_real() for tensor in self._like]
        self._dtype = reduce(torch.promote_types, dtypes, torch.float32)

    def distances(self, pool: Executor) -> Iterator[Tensor]:
        """Return each piece's squared distances between clients."""
        return pool.map(lambda i: squared_distances(self._stack(i)), range(self._count))

    def aggregate(self, shares: Sequence[float], pool: Executor) -> list[Array]:
        """Return the aggregate's arrays, under normalised weights."""
        results = [BlankArray(tensor) for tensor in self._like]

        def aggregate_piece(i: int) -> None:
            mean, log_var = self._aggregate_piece(i, shares)
            piece = slice(i * self._size, (i + 1) * self._size)
            results[0].flat[piece] = mean
            if log_var is not None:
                scale = scale_from(log_var, self._convention, self._like[1].dtype)
                results[1].flat[piece] = scale

        for _ in pool.map(aggregate_piece, range(self._count)):
            pass
        return [result.filled() for result in results]

    def _aggregate_piece(self, i: int, shares: Sequence[float]) -> tuple[Tensor, Tensor | None]:
        if self._streamed is None:
            return aggregate_stack(self._rule, self._stack(i), shares)
        sums = Sums(self._streamed, self._dtype)
        for (mean, log_var), share in zip(self._piece(i), shares, strict=True):
            sums.add(mean, log_var, share)
        return sums.finish()

    def _stack(self, i: int) -> Stack:
        return stacked(list(self._piece(i)), self._max_precision_ratio, self._dtype)

    def _piece(self, i: int) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Return the clients' means and log-variances of a piece, one after another."""
        for mean, *scale in self._clients:
            log_var = self._convention.to_log_var(scale[0][i].to(self._dtype)) if scale else None
            yield mean[i], log_var
