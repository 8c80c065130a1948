"""The aggregation: named tensors of all clients, tensor by tensor, on threads."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedbary.aggregation.bound import check_ratio
from fedbary.aggregation.buffers import aggregate_buffer
from fedbary.aggregation.converted import Converted, kind_of, piece_of
from fedbary.aggregation.joint import AnyRule
from fedbary.aggregation.mixing import Mixing, distances_after
from fedbary.aggregation.reals import flat_reals, is_continuous
from fedbary.aggregation.robust import SelectionRule
from fedbary.aggregation.rule import Rule
from fedbary.aggregation.stack import (
    Stack,
    aggregate_stack,
    mixed,
    squared_distances,
    stack_size,
    stacked,
    update_products,
)
from fedbary.aggregation.sums import PIECE, RunningSums, normalised
from fedbary.aggregation.threads import Threads, workers
from fedbary.gaussian import gaussian_pairs

Empty = Callable[[Tensor, torch.dtype], Tensor]
"""Returns a contiguous tensor of another's shape and a given dtype, with arbitrary values."""


def new_empty(like: Tensor, dtype: torch.dtype) -> Tensor:
    """Return such a tensor in memory of its own; see `Empty`."""
    return torch.empty_like(like, dtype=dtype, memory_format=torch.contiguous_format)


def aggregate_tensors(
    rule: AnyRule,
    clients: Sequence[Mapping[str, Tensor]],
    weights: Sequence[float],
    max_precision_ratio: float | None = None,
    *,
    mixing: Mixing | None = None,
    centre: Mapping[str, Tensor] | None = None,
    least_dtype: torch.dtype = torch.float64,
    largest_log_var: float = math.inf,
    empty: Empty = new_empty,
) -> dict[str, Tensor]:
    """Aggregate the clients' tensors under a rule; see `fedbary.aggregation.aggregate`.

    It works on pieces of tensors that fit the cache, on as many threads as torch has. The extra
    memory is the result's, whatever the number of clients. This holds also if log-variances are
    converted on demand, see `Converted`.

    Parameters
    ----------
    rule : Rule or RobustRule or JointRule
        The rule for Gaussian tensors; a robust rule is for all tensors.
    clients : sequence of Mapping[str, Tensor]
        One per client, all with the keys, shapes and dtypes of the first: ``<name>_mean`` with
        ``<name>_log_var`` for Gaussian tensors. None is changed.
    weights : sequence of float
        One per client: finite, none negative, not all 0; any scale.
    max_precision_ratio : float, optional
        The largest ratio of a precision to the clients' median; see `fedbary.aggregation.bound`.
    mixing : Mixing, optional
        Treatment of the posteriors before the rule aggregates them.
    centre : Mapping[str, Tensor], optional
        The global model that the clients began from, with the same keys; `mixing` needs it.
    least_dtype : torch.dtype
        The precision to work in where tensors are no wider. In float32 log-variances must be
        within ±80; see `RunningSums`.
    largest_log_var : float
        Largest magnitude of the result's log-variances.
    empty : callable
        Makes the result's floating and complex tensors.

    Returns
    -------
    dict of str to Tensor
        The aggregate, in new tensors, with the keys in the order of the first client. Integer and
        bool tensors are the clients' mean, rounded, or their median under a robust rule; see
        `aggregate_buffer`.

    Raises
    ------
    SettingError
        If the weights or the ratio are not allowed, or the clients too few for the rule.
    ValueError
        If a log-variance has no mean.
    """
    check_ratio(max_precision_ratio)
    shares = normalised(weights)
    counted = [client for client, share in zip(clients, shares, strict=True) if share > 0]
    shares = [share for share in shares if share > 0]
    pairs = gaussian_pairs(clients[0].keys())
    log_vars = set(pairs.values())
    result: dict[str, Tensor] = {}
    floating: list[tuple[str, ...]] = []
    for key in clients[0]:
        if key in log_vars:
            continue
        if key in pairs:
            floating.append((key, pairs[key]))
        elif is_continuous(clients[0][key]):
            floating.append((key,))
        else:
            result[key] = aggregate_buffer(rule, [client[key] for client in counted], shares)

    if mixing is not None:
        assert centre is not None
        counted = [*counted, centre]
    stacks = mixing is not None or max_precision_ratio is not None
    tensors = {
        keys: _Pieces(keys, counted, rule, max_precision_ratio, least_dtype, stacks, len(shares))
        for keys in floating
    }
    matrices: Tensor | None = None
    with workers() as pool:
        if mixing is not None or isinstance(rule, SelectionRule):
            between = squared_distances if mixing is None else update_products
            parts = (part for tensor in tensors.values() for part in tensor.between(between, pool))
            apart = sum(parts, torch.zeros(1, len(shares), len(shares), dtype=torch.float64))
            if mixing is not None:
                matrices = mixing.matrices(apart)
                apart = distances_after(matrices, apart)
            if isinstance(rule, SelectionRule):
                shares = rule.weights(apart.sum(0))
        for keys, tensor in tensors.items():
            made = tensor.aggregate(shares, pool, largest_log_var, empty, matrices)
            result |= zip(keys, made, strict=True)
    return {key: result[key] for key in clients[0]}


class _Pieces:
    """One tensor of all clients, by its keys (mean, log_var), or (mean,) if deterministic."""

    def __init__(
        self,
        keys: tuple[str, ...],
        clients: Sequence[Mapping[str, Tensor]],
        rule: AnyRule,
        max_precision_ratio: float | None,
        least_dtype: torch.dtype,
        stacks: bool,
        bounded: int,
    ) -> None:
        self._rule, self._bounded = rule, bounded
        self._max_precision_ratio = max_precision_ratio
        self._streamed = rule if isinstance(rule, Rule) and not stacks else None
        self._size = PIECE if self._streamed else stack_size(len(clients))
        self._clients = [[piece_of(client, key, self._size) for key in keys] for client in clients]
        self._kinds = [kind_of(clients[0], key) for key in keys]
        self._count = len(flat_reals(self._kinds[0][0]).split(self._size))
        self._dtype = least_dtype
        for _, dtype in self._kinds:
            self._dtype = torch.promote_types(self._dtype, dtype.to_real())
        self._arrays = self._in_place(keys, clients) if self._dtype == torch.float32 else []

    def between(self, of: Callable[[Stack], Tensor], pool: Threads) -> Iterator[Tensor]:
        """Return the clients' pairwise distances or inner products in each piece."""
        return pool.map(lambda i: of(self._stack(i)), range(self._count))

    def aggregate(
        self,
        shares: Sequence[float],
        pool: Threads,
        largest_log_var: float,
        empty: Empty,
        matrices: Tensor | None = None,
    ) -> list[Tensor]:
        """Return the aggregate of the clients, mixed by the matrices, under normalised weights."""
        results = [empty(like, dtype) for like, dtype in self._kinds]
        places = [flat_reals(tensor).split(self._size) for tensor in results]

        def aggregate_piece(i: int) -> None:
            mean, log_var = self._aggregate_piece(i, shares, matrices)
            places[0][i].copy_(mean)
            if log_var is not None:
                places[1][i].copy_(log_var.clamp(-largest_log_var, largest_log_var))

        for _ in pool.map(aggregate_piece, range(self._count)):
            pass
        return results

    def _aggregate_piece(
        self, i: int, shares: Sequence[float], matrices: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        if self._streamed is None:
            stack = self._stack(i)
            stack = stack if matrices is None else mixed(stack, matrices)
            return aggregate_stack(self._rule, stack, shares)
        sums = RunningSums(self._streamed, self._dtype)
        if self._arrays:
            part = slice(i * self._size, (i + 1) * self._size)
            sums.add_arrays([(mean[part], log_var[part]) for mean, log_var in self._arrays], shares)
            return sums.finish()
        for (mean, log_var), share in zip(self._piece(i), shares, strict=True):
            sums.add(mean, log_var, share)
        return sums.finish()

    def _in_place(
        self, keys: tuple[str, ...], clients: Sequence[Mapping[str, Tensor]]
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return means and log-variances for the rule's `add`; none where it cannot take them."""
        if self._streamed is None or self._streamed.add is None or len(keys) == 1:
            return []
        if any(isinstance(client, Converted) and client.functions for client in clients):
            return []
        flat = [[flat_reals(client[key]) for key in keys] for client in clients]
        if any(t.dtype != torch.float32 or t.device.type != "cpu" for pair in flat for t in pair):
            return []
        return [(mean.numpy(), log_var.numpy()) for mean, log_var in flat]

    def _stack(self, i: int) -> Stack:
        return stacked(list(self._piece(i)), self._max_precision_ratio, self._dtype, self._bounded)

    def _piece(self, i: int) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Return the clients' means and log-variances of a piece, one after another."""
        for mean, *log_var in self._clients:
            yield mean(i), log_var[0](i) if log_var else None
