"""The aggregate of integer and bool tensors: counters, masks, tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedbary.aggregation.joint import AnyRule
from fedbary.aggregation.robust import RobustRule
from fedbary.aggregation.sums import PIECE

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
