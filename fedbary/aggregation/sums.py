"""The arithmetic of every rule: weighted sums of coordinates, client by client."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedbary.aggregation.rule import Rule
from fedbary.errors import SettingError

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
