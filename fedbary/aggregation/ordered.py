"""The clients' values of every weight in ascending order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np

_MOST = 32
"""The most clients that a network orders in less time than a sort of each weight."""


def ordered(stack: np.ndarray) -> Sequence[np.ndarray]:
    """Return the rows of a stack [clients, weights] sorted by column, as `numpy.sort` does.

    For few clients it compares whole rows, pair by pair, by Batcher's odd-even merge sort. A
    minimum and a maximum of long rows take less time than a sort of many short columns.

    Source: Batcher, Sorting networks and their applications, AFIPS 1968.
    """
    if len(stack) > _MOST or np.isnan(stack).any():
        return list(np.sort(stack, axis=0))
    rows = list(stack.copy())
    low = np.empty_like(rows[0])
    for one, other in _pairs(len(rows)):
        np.minimum(rows[one], rows[other], out=low)
        np.maximum(rows[one], rows[other], out=rows[other])
        rows[one], low = low, rows[one]
    return rows


@cache
def _pairs(count: int) -> list[tuple[int, int]]:
    """Return the pairs that, each put in order, sort so many values."""
    return list(_odd_even_merge(count))


def _odd_even_merge(count: int) -> Iterator[tuple[int, int]]:
    sorted_run = 1
    while sorted_run < count:
        step = sorted_run
        while step:
            for start in range(step % sorted_run, count - step, 2 * step):
                for one in range(start, min(start + step, count - step)):
                    if one // (2 * sorted_run) == (one + step) // (2 * sorted_run):
                        yield one, one + step
            step //= 2
        sorted_run *= 2
