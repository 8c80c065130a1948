"""Posteriors in Flower's records: read, written, and aggregated from bytes into bytes."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor

import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor

from fedbary.aggregation import Rule
from fedbary.aggregation.sums import PIECE, Sums, normalised
from fedbary.gaussian import Posterior

from .admission import LOG_VAR_LIMIT
from .arrays import BlankArray, array_from_tensor, tensor_from_array
from .conventions import Convention
from .workers import workers

LARGEST_LOG_VAR = 0.99 * LOG_VAR_LIMIT
"""Where an aggregate's log-variances end, so that clients that keep them are still admitted.

GAA shrinks variances by Σ w² a round; left alone they would leave what is admitted.
"""


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
    rule: Rule, records: Sequence[ArrayRecord], weights: Sequence[float], convention: Convention
) -> ArrayRecord:
    """Aggregate records as `fedbary.aggregation.aggregate` does posteriors, but faster.

    Each tensor is worked through in pieces that fit the cache, from the records' bytes into the
    result's, in float32 where the arrays are no wider (see `Sums`), on as many threads as torch
    has. The extra memory is the result's, whatever the number of records.

    Parameters
    ----------
    rule : Rule
        The rule for Gaussian tensors.
    records : sequence of ArrayRecord
        One per client, all with the keys, shapes and dtypes of the first, log-variances within
        ±80; none is changed.
    weights : sequence of float
        One per client: finite, none negative, not all 0; any scale.
    convention : Convention
        Which arrays are Gaussian, and the unit of their scales.

    Returns
    -------
    ArrayRecord
        The aggregate, with the keys in the order of the first record; integer and bool arrays are
        the first record's.
    """
    shares = normalised(weights)
    pairs = convention.pairs(records[0].keys())
    arrays: dict[str, Array] = {}
    with workers() as pool:
        for key in _means(records[0], pairs):
            keys = [key, pairs[key]] if key in pairs else [key]
            tensors = [[tensor_from_array(record[k]) for k in keys] for record in records]
            if tensors[0][0].is_floating_point():
                results = _aggregate_tensor(rule, tensors, shares, convention, pool)
            else:
                results = [array_from_tensor(tensor) for tensor in tensors[0]]
            arrays |= zip(keys, results, strict=True)
    return ArrayRecord({key: arrays[key] for key in records[0]})


def _means(record: ArrayRecord, pairs: dict[str, str]) -> list[str]:
    """Return the keys of a record, in order, that are not those of scales."""
    scales = set(pairs.values())
    return [key for key in record if key not in scales]


def _aggregate_tensor(
    rule: Rule,
    clients: list[list[Tensor]],
    shares: list[float],
    convention: Convention,
    pool: Executor,
) -> list[Array]:
    """Aggregate one tensor, given as each client's [mean, scale], or [mean] if deterministic."""
    results = [BlankArray(tensor) for tensor in clients[0]]
    pieces = [[tensor.view(-1).split(PIECE) for tensor in tensors] for tensors in clients]
    dtype = torch.float32
    for tensor in clients[0]:
        dtype = torch.promote_types(dtype, tensor.dtype)

    def aggregate_piece(i: int) -> None:
        sums = Sums(rule, dtype)
        for client, share in zip(pieces, shares, strict=True):
            mean, *scale = (tensor[i] for tensor in client)
            log_var = convention.to_log_var(scale[0].to(dtype)) if scale else None
            sums.add(mean, log_var, share)
        mean, log_var = sums.finish()
        piece = slice(i * PIECE, (i + 1) * PIECE)
        results[0].flat[piece] = mean
        if log_var is not None:
            log_var.clamp_(-LARGEST_LOG_VAR, LARGEST_LOG_VAR)
            results[1].flat[piece] = convention.from_log_var(log_var)

    for _ in pool.map(aggregate_piece, range(len(pieces[0][0]))):
        pass
    return [result.filled() for result in results]
