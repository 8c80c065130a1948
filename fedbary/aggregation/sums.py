"""Weighted sums of named tensors, client by client: prefixes, real numbers, limits, threads."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cached_property
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedbary.aggregation.rules import Rule
from fedbary.errors import SettingError

Anything = TypeVar("Anything")


def select_prefix(prefix: str, held: Mapping[str, Anything]) -> dict[str, Anything]:
    """Return the tensors whose names have a prefix, by the rest of their names."""
    return {name.removeprefix(prefix): v for name, v in held.items() if name.startswith(prefix)}


def is_continuous(tensor: Tensor) -> bool:
    """Return whether a tensor holds floating or complex numbers, neither integers nor bools."""
    return tensor.is_floating_point() or tensor.is_complex()


def flat_reals(tensor: Tensor) -> Tensor:
    """Return a tensor's numbers in one dimension, without a copy where that is possible.

    Real and imaginary parts of a complex tensor alternate.
    """
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.reshape(-1)


HERE_SECONDS = 0.002
"""Seconds of work that are done before threads are started, which takes as long."""

_Result = TypeVar("_Result")


class Threads:
    """Threads that start once the work has taken a while; until then it is done here.

    Parameters
    ----------
    threads
        Their number.
    stack
        Its end is theirs.
    """

    def __init__(self, threads: int, stack: ExitStack) -> None:
        self._threads, self._stack, self._left = threads, stack, HERE_SECONDS

    def map(self, call: Callable[..., _Result], *columns: Iterable[Any]) -> Iterator[_Result]:
        """Return the results of a call for each row, in order; the work begins at once."""
        rows, done = zip(*columns, strict=False), list[_Result]()
        while self._left > 0:
            if (row := next(rows, None)) is None:
                return iter(done)
            begun = time.perf_counter()
            done.append(call(*row))
            self._left -= time.perf_counter() - begun
        results = [self._pool.submit(call, *row) for row in rows]
        return chain(done, (result.result() for result in results))

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        pool = ThreadPoolExecutor(self._threads, initializer=lambda: torch.set_num_threads(1))
        return self._stack.enter_context(pool)


@contextmanager
def workers() -> Iterator[Threads]:
    """Give as many threads as torch has, each of which uses torch with one.

    These threads wait for each other once, at the end. Torch's own threads do so at every
    operation, which takes many times as long on a busy machine.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ExitStack() as stack:
            yield Threads(threads, stack)
    finally:
        torch.set_num_threads(threads)


LOG_VAR_LIMIT = 40.0
"""The largest magnitude of an admitted log-variance: standard deviations from 2e-9 to 5e8."""

LARGEST_LOG_VAR = 0.99 * LOG_VAR_LIMIT
"""The largest magnitude of an aggregate's log-variances, so that admission takes what clients keep.

GAA multiplies variances by Σ w² in each round; without this limit they would fall below the
admitted range.
"""

_HEADROOM = 2.0**20
"""The largest factor by which sums over clients may multiply a coordinate."""


def value_limit(dtype: torch.dtype, gaussian: bool) -> float:
    """Return the largest magnitude of an admitted value, which every rule's coordinates can carry.

    A Gaussian's m/v (RKLB) is computed in the mean's precision, or float32, with 1/v up to e⁴⁰;
    squares (FKLB, Multi-Krum, FedAG) in float64. In float32 that is 1.4e15 for means of Gaussians
    and 3e32 for other arrays.

    Parameters
    ----------
    dtype : torch.dtype
        Type of the array, floating or complex.
    gaussian : bool
        True: it holds means of Gaussians.
    """
    largest = torch.finfo(torch.promote_types(dtype, torch.float32)).max / _HEADROOM
    square = math.sqrt(torch.finfo(torch.float64).max / _HEADROOM)
    return min(largest * math.exp(-LOG_VAR_LIMIT) if gaussian else largest, square)


def check_values(tensor: Tensor, gaussian: bool) -> None:
    """Raise a ValueError unless a tensor's values are finite and within `value_limit`."""
    if tensor.numel() == 0:
        return
    limit = value_limit(tensor.dtype, gaussian)
    low, high = extremes(tensor).tolist()
    if not -limit <= low <= high <= limit:
        raise ValueError(
            f"its values run from {low:.6g} to {high:.6g}, allowed are {-limit:.3g} to {limit:.3g}"
        )


def extremes(tensor: Tensor) -> Tensor:
    """Return the least and the largest of a tensor's numbers, of which there are some.

    Raises
    ------
    ValueError
        If one of its numbers is not finite.
    """
    found = torch.stack(torch.aminmax(flat_reals(tensor))).double()
    if not found.isfinite().all():
        raise ValueError("it holds values that are not finite")
    return found


PIECE = 1 << 17
"""Elements to work on at a time: the cache holds them, and threads seldom wait for each other."""

_GROUP = 16
"""Clients summed in a working precision below float64 before their sum joins the float64 one."""


class RunningSums:
    """Aggregate one tensor, or one piece of it, from one client after another.

    With `dtype` float32 the coordinates are computed in float32, and summed so over groups of 16
    clients. The groups' sums are added in float64, so the rounding error does not grow with the
    number of clients. Log-variances must lie within ±80, so that no exponential leaves the range of
    float32.

    Parameters
    ----------
    rule : Rule
        The rule for Gaussian tensors; a deterministic one (no log-variance) is averaged, which
        is every rule's limit for variances that go to 0.
    dtype : torch.dtype
        The working precision; rules that are `centred` always work in float64.
    """

    def __init__(self, rule: Rule, dtype: torch.dtype = torch.float64) -> None:
        self._rule = rule
        self._dtype = torch.float64 if rule.centred else dtype
        self._origin: Tensor | None = None
        self._group: list[Tensor] = []
        self._group_size = 0
        self._largest = 0.0
        self._total: list[Tensor] = []
        self._gaussian = False

    def add(self, mean: Tensor, log_var: Tensor | None, weight: float) -> None:
        """Add one client's tensor with its normalised weight; a weight of 0 adds nothing."""
        if weight == 0:
            return
        self._largest = max(self._largest, weight)
        mean = mean.to(self._dtype)
        if log_var is None:
            self._accumulate((mean,), (weight,))
            return
        self._gaussian = True
        if self._rule.centred:
            if self._origin is None:
                self._origin = mean.clone()
            mean = mean - self._origin
        coordinates = self._rule.forward(mean, log_var.to(self._dtype))
        self._accumulate(coordinates, [weight**power for power in self._rule.powers])

    def add_arrays(
        self, clients: Sequence[tuple[np.ndarray, np.ndarray]], weights: Sequence[float]
    ) -> None:
        """Add clients' means and log-variances in float32 by the rule's `add`; no weight is 0."""
        assert self._rule.add is not None
        self._gaussian = True
        self._largest = max(self._largest, *weights)
        spare = np.empty_like(clients[0][0])
        for first in range(0, len(clients), _GROUP):
            if self._group:
                self._close_group()
            self._group = [torch.zeros(len(spare)) for _ in self._rule.powers]
            sums, group = [total.numpy() for total in self._group], slice(first, first + _GROUP)
            with np.errstate(all="ignore"):
                for (mean, log_var), weight in zip(clients[group], weights[group], strict=True):
                    self._rule.add(sums, mean, log_var, weight ** self._rule.powers[0], spare)

    def finish(self) -> tuple[Tensor, Tensor | None]:
        """Return the aggregate's mean and log-variance (None if deterministic)."""
        if self._total:
            self._close_group()
            sums = [total.to(self._dtype) for total in self._total]
        else:
            sums = self._group
        if not self._gaussian:
            return sums[0], None
        mean, log_var = self._rule.found(sums, self._largest)
        return (mean if self._origin is None else mean + self._origin), log_var

    def _accumulate(self, coordinates: Sequence[Tensor], weights: Sequence[float]) -> None:
        if self._group_size == _GROUP and self._dtype != torch.float64:
            self._close_group()
        if self._group:
            for total, coordinate, weight in zip(self._group, coordinates, weights, strict=True):
                total.add_(coordinate, alpha=weight)
        else:
            self._group = [c * w for c, w in zip(coordinates, weights, strict=True)]
        self._group_size += 1

    def _close_group(self) -> None:
        if self._total:
            for total, partial in zip(self._total, self._group, strict=True):
                total += partial
        else:
            self._total = [partial.double() for partial in self._group]
        self._group, self._group_size = [], 0


def normalised(weights: Sequence[float]) -> list[float]:
    """Scale weights to a sum of 1.

    Raises
    ------
    SettingError
        If a weight is negative or not finite, or if none is positive.
    """
    for weight in weights:
        if not (math.isfinite(weight) and weight >= 0):
            raise SettingError("weights", weight, "finite numbers, none negative")
    largest = max(weights, default=0)
    if largest == 0:
        raise SettingError("weights", list(weights), "at least one positive number")
    shares = [weight / largest for weight in weights]
    total = math.fsum(shares)
    return [share / total for share in shares]
