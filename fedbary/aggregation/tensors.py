"""The aggregation: named tensors of all clients, tensor by tensor, on threads."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fedbary.aggregation.mixing import Mixing, distances_after
from fedbary.aggregation.robust import CoordinateRule, RobustRule, SelectionRule, median
from fedbary.aggregation.rules import WB, AnyRule, JointRule, Rule
from fedbary.aggregation.sums import (
    PIECE,
    RunningSums,
    Threads,
    flat_reals,
    is_continuous,
    normalised,
    workers,
)
from fedbary.errors import SettingError
from fedbary.gaussian import Posterior, gaussian_pairs


def check_ratio(ratio: float | None, setting: str = "max_precision_ratio") -> None:
    """Raise a SettingError unless the ratio is None, or finite and 1 or more."""
    if ratio is not None and not 1 <= ratio < math.inf:
        raise SettingError(setting, ratio, "1 or more, or None")


def bound_precisions(log_var: Tensor, max_precision_ratio: float) -> Tensor:
    """Return log-variances, [clients, weights], of precisions within a ratio r of the median.

    For each weight, 1/v_k becomes min(1/v_k, r · median_j 1/v_j); every client counts once in the
    median. A rule that weighs by precision gives a client the influence w/v: one that sends tiny
    variances decides the aggregate. With the bound it has at most r times the influence of a client
    with the median precision, if less than half of the clients are hostile.

    The bound does nothing else. It does not change means. Let a fraction h of the clients be
    hostile, with equal weights, and the others have the median precision. Then the hostile ones
    still have up to r h / (r h + 1 − h) of the influence. It does not change large variances, which
    WB, EAA and FKLB pass on, nor the weights that clients claim.
    """
    least = median(log_var) - math.log(max_precision_ratio)
    return torch.maximum(log_var, least)


@dataclass(frozen=True, eq=False)
class Converted(Mapping[str, Tensor]):
    """Named tensors, some of which a function converts on access.

    Indexing returns a tensor whole. `piece_of` never holds more of it than a piece.

    Parameters
    ----------
    held : Mapping[str, Tensor]
        The tensors before conversion.
    functions : mapping of str to callable
        An element-wise function for each name whose tensor is to be converted.
    """

    held: Mapping[str, Tensor]
    functions: Mapping[str, Callable[[Tensor], Tensor]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Tensor:
        tensor = self.held[name]
        return self.functions[name](tensor) if name in self.functions else tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.held)

    def __len__(self) -> int:
        return len(self.held)


def piece_of(tensors: Mapping[str, Tensor], name: str, size: int) -> Callable[[int], Tensor]:
    """Return the function that gives the i-th piece of a tensor, converted; pieces have a size."""
    if isinstance(tensors, Converted) and name in tensors.functions:
        held, function = flat_reals(tensors.held[name]).split(size), tensors.functions[name]
        return lambda i: function(held[i])
    return flat_reals(tensors[name]).split(size).__getitem__


def kind_of(tensors: Mapping[str, Tensor], name: str) -> tuple[Tensor, torch.dtype]:
    """Return a tensor of the shape of a named one, and the dtype after conversion."""
    if isinstance(tensors, Converted) and name in tensors.functions:
        held = tensors.held[name]
        return held, tensors.functions[name](held.new_ones(1)).dtype
    return tensors[name], tensors[name].dtype


_SIGN = np.uint64(1 << 63)


class BufferMean:
    """The weighted mean Σ w_k x_k of an integer or bool tensor, rounded, half to even.

    Clients are added one after another, with weights that sum to 1. Sums run in float64 over the
    differences from the heaviest client so far. So equal values stay exact, differences over the
    whole range of int64 do not overflow, and a distant value of little weight costs no accuracy.
    """

    def __init__(self) -> None:
        self._like: Tensor | None = None
        self._heaviest = self._weight = 0.0

    def add(self, tensor: Tensor, weight: float) -> None:
        """Add one client's tensor with its normalised weight; a weight of 0 adds nothing."""
        if weight == 0:
            return
        codes = _encoded(_flat(tensor))
        if self._like is None:
            self._like = torch.empty_like(tensor, device="meta")
            self._origin, self._step = codes, np.zeros(len(codes))
        if weight > self._heaviest:
            origin = codes & ~np.uint64(1)  # even: half to even of the step is of the value
            self._step += self._weight * _difference(self._origin, origin)
            self._origin, self._heaviest = origin, weight
        self._step += weight * _difference(codes, self._origin)
        self._weight += weight

    def finish(self) -> Tensor:
        """Return the mean, of the first tensor's shape and dtype."""
        assert self._like is not None
        dtype = np.dtype(str(self._like.dtype).removeprefix("torch."))
        ends = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        lowest, highest = _encoded(np.array(ends, dtype))
        up, size = self._step >= 0, np.abs(np.rint(self._step))
        room = np.where(up, highest - self._origin, self._origin - lowest)
        inside = size < room.astype(np.float64)
        step = np.where(inside, np.where(inside, size, 0).astype(np.uint64), room)
        codes = np.where(up, self._origin + step, self._origin - step)
        values = (codes ^ _SIGN).view(np.int64) if dtype.kind == "i" else codes
        return torch.from_numpy(values.astype(dtype)).reshape(self._like.shape)


def aggregate_buffer(rule: AnyRule, clients: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Return the aggregate of an integer or bool tensor.

    A robust rule takes the element-wise median; of an even number of clients it takes the lower of
    the two middle ones. Any other rule takes the rounded mean, see `BufferMean`.

    Parameters
    ----------
    rule
        The rule.
    clients
        One tensor per client, of one shape and dtype.
    weights
        Normalised, one per client; a robust rule ignores them.
    """
    if isinstance(rule, RobustRule):
        return _median(clients)
    mean = BufferMean()
    for tensor, weight in zip(clients, weights, strict=True):
        mean.add(tensor, weight)
    return mean.finish()


def _median(clients: Sequence[Tensor]) -> Tensor:
    values = [_flat(tensor) for tensor in clients]
    result = np.empty_like(values[0])
    size, middle = max(1, 16 * PIECE // len(clients)), (len(clients) - 1) // 2
    for start in range(0, len(result), size):
        piece = slice(start, start + size)
        stack = np.stack([flat[piece] for flat in values])
        result[piece] = np.partition(stack, middle, axis=0)[middle]
    return torch.from_numpy(result).reshape(clients[0].shape)


def _flat(tensor: Tensor) -> np.ndarray:
    return tensor.numpy(force=True).reshape(-1)


def _encoded(values: np.ndarray) -> np.ndarray:
    """Map any integers or bools to uint64, in their order."""
    if values.dtype.kind != "i":
        return values.astype(np.uint64)
    return values.astype(np.int64).view(np.uint64) ^ _SIGN


def _difference(codes: np.ndarray, origin: np.ndarray) -> np.ndarray:
    """Return codes − origin in float64."""
    above, below = (codes - origin).astype(np.float64), (origin - codes).astype(np.float64)
    return np.where(codes >= origin, above, -below)


Stack = tuple[Tensor, Tensor | None]


def stacked(
    clients: Sequence[tuple[Tensor, Tensor | None]],
    max_precision_ratio: float | None,
    dtype: torch.dtype,
    bounded: int,
) -> Stack:
    """Return means and log-variances as a stack in a dtype, the first ones' precisions bounded."""
    mean = torch.stack([mean.to(dtype) for mean, _ in clients])
    log_vars = [log_var.to(dtype) for _, log_var in clients if log_var is not None]
    if not log_vars:
        return mean, None
    log_var = torch.stack(log_vars)
    if max_precision_ratio is not None:
        log_var[:bounded] = bound_precisions(log_var[:bounded], max_precision_ratio)
    return mean, log_var


def aggregate_stack(
    rule: AnyRule, stack: Stack, weights: Sequence[float]
) -> tuple[Tensor, Tensor | None]:
    """Return the aggregate's mean and log-variance, [weights]; None if deterministic.

    Parameters
    ----------
    rule
        The rule; a selection rule only averages here.
    stack
        The clients' values.
    weights
        Normalised, one per client; for a selection rule its own weights.
    """
    mean, log_var = stack
    if isinstance(rule, CoordinateRule):
        hostile = rule.num_hostile(len(mean))
        across = rule.across(mean, hostile)
        return across, None if log_var is None else rule.across(log_var, hostile)
    if isinstance(rule, JointRule) and log_var is not None:
        shares = torch.tensor(weights, dtype=torch.float64, device=mean.device)
        return rule.across(mean.double(), log_var.double(), shares)
    sums = RunningSums(rule if isinstance(rule, Rule) else WB, mean.dtype)
    for k, weight in enumerate(weights):
        sums.add(mean[k], None if log_var is None else log_var[k], weight)
    return sums.finish()


def apply_mixing(stack: Stack, matrices: Tensor) -> Stack:
    """Return the clients' points (m, √v) after mixing; the stack's last is the centre.

    Parameters
    ----------
    stack
        The clients' values, and the centre's.
    matrices
        For m and for √v, (2, clients, clients), see `Mixing.matrices`.
    """
    mean, log_var = stack
    rest = 1 - matrices.sum(2, keepdim=True)
    of_means, of_stds = torch.cat([matrices, rest], dim=2).to(mean).clamp_min(0)
    if log_var is None:
        return of_means @ mean, None
    return of_means @ mean, 2 * (of_stds @ (log_var / 2).exp()).log()


def update_products(stack: Stack) -> Tensor:
    """Return the inner products of the clients' updates in m and in √v, [2, clients, clients].

    Updates are differences from the stack's last, the centre. In float64 a third, distant client
    does not make two clients' product less exact.
    """
    mean, log_var = stack
    updates = mean[:-1].double() - mean[-1].double()
    of_means = updates @ updates.T
    if log_var is None:
        return torch.stack([of_means, torch.zeros_like(of_means)]).cpu()
    std = (log_var.double() / 2).exp()
    updates = std[:-1] - std[-1]
    return torch.stack([of_means, updates @ updates.T]).cpu()


def squared_distances(stack: Stack) -> Tensor:
    """Return the squared Wasserstein-2 distances between clients, [clients, clients].

    Differences are taken in float64 before they are squared. So distances stay exact for clients
    that lie close together and far from 0.
    """
    mean, log_var = stack
    points = mean.double()
    if log_var is not None:
        points = torch.cat([points, (log_var.double() / 2).exp()], dim=1)
    distances = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
    return distances.square().cpu()


def chunk_size(clients: int) -> int:
    """Return how many elements to stack at a time, so that memory does not grow with clients."""
    return max(PIECE // 16, min(PIECE, 4 * PIECE // clients))


class Running:
    """The sums of every tensor under a rule, to which one posterior after another is added.

    Parameters
    ----------
    rule : Rule
        The rule.
    first : Posterior
        A posterior with the layout of all; its data are not held.

    Attributes
    ----------
    layout : Posterior
        The first posterior without its data.
    """

    def __init__(self, rule: Rule, first: Posterior) -> None:
        self.layout = Posterior(_without_data(first.mean), _without_data(first.log_var))
        self._sums: dict[str, RunningSums | BufferMean] = {
            name: RunningSums(rule) if is_continuous(tensor) else BufferMean()
            for name, tensor in first.mean.items()
        }

    def add(self, posterior: Posterior, share: float) -> None:
        """Add a posterior with its normalised weight."""
        for name, sums in self._sums.items():
            mean, log_var = posterior.mean[name], posterior.log_var.get(name)
            if isinstance(sums, BufferMean):
                sums.add(mean, share)
            else:
                flat = None if log_var is None else flat_reals(log_var)
                sums.add(flat_reals(mean), flat, share)

    def finish(self) -> Posterior:
        """Return the aggregate, with the names, order, shapes and dtypes of the layout."""
        means: dict[str, Tensor] = {}
        log_vars: dict[str, Tensor] = {}
        for name, sums in self._sums.items():
            if isinstance(sums, BufferMean):
                means[name] = sums.finish()
                continue
            mean, log_var = sums.finish()
            means[name] = _shaped(mean, self.layout.mean[name])
            if log_var is not None:
                log_vars[name] = _shaped(log_var, self.layout.log_var[name])
        return Posterior(means, log_vars)


def _without_data(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors.items()}


def _shaped(reals: Tensor, like: Tensor) -> Tensor:
    reals = reals.to(like.dtype.to_real())
    if like.is_complex():
        reals = torch.view_as_complex(reals.view(-1, 2))
    return reals.reshape(like.shape)


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
        The largest ratio of a precision to the clients' median; see `fedbary.aggregation.tensors`.
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
        self._size = PIECE if self._streamed else chunk_size(len(clients))
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
            stack = stack if matrices is None else apply_mixing(stack, matrices)
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
