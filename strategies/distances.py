"""Distances of replies from the sent arrays, compared with each other."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from statistics import median_low

import torch
from flwr.app import Array, ArrayRecord

from fedbary.aggregation.reals import flat_reals, is_continuous
from fedbary.aggregation.sums import PIECE
from fedbary.aggregation.threads import workers

from .arrays import tensor_from_array

LEAST = 3
"""Least number of replies; among fewer none can be called the far one."""

FAR = 100.0
"""Multiple of the usual distance from which a reply is refused."""

NEAR = 10.0
"""Distance that a number may always move in a round, whatever other clients do."""


def farness(
    records: Sequence[ArrayRecord],
    like: ArrayRecord,
    keys: Collection[str],
    earlier: Sequence[float] = (),
) -> list[float]:
    """Return each reply's distance from the sent arrays, as a multiple of the usual one.

    A reply's distance is the largest of its numbers' distances. The usual distance is the replies'
    median (of an even number the lower middle one). It is at least 1/`FAR` of `NEAR`, and 1/`FAR`
    of the largest number that was sent. So a reply that moves no number by more than these two is
    never too far. Clients that stand still, or take a few steps where a large site takes thousands,
    do not make another client far.

    Parameters
    ----------
    records : sequence of ArrayRecord
        The arrays of admitted replies, at least one.
    like : ArrayRecord
        Form of a sound reply; the model's arrays are those that were sent.
    keys : collection of str
        The arrays that are compared.
    earlier : sequence of float
        Distances of other replies from the arrays sent to them, counted in the median.
    """
    with workers() as pool:
        distances = list(pool.map(lambda record: distance(record, like, keys), records))
    largest = max((_apart(like[key]) for key in keys), default=0.0)
    usual = max(median_low([*earlier, *distances]), largest / FAR, NEAR / FAR)
    return [far / usual for far in distances]


def distance(record: ArrayRecord, like: ArrayRecord, keys: Collection[str]) -> float:
    """Return the largest distance of a reply's numbers from the sent ones."""
    return max((_apart(record[key], like[key]) for key in keys), default=0.0)


def allowed_for(weights: float, others: float) -> float:
    """Return one multiple of the usual distance for a reply's weights and its other arrays.

    Log-variances and curvatures differ more than weights do between honest clients of unlike sizes,
    so their multiple counts 1/`FAR`.
    """
    return max(weights, others / FAR)


def too_far(weights: float, others: float) -> str | None:
    """Return the reason to refuse a reply with these multiples of the usual distance, or None.

    Means and point weights may lie `FAR` times as far, other arrays `FAR`² times.
    """
    times = allowed_for(weights, others)
    if times <= FAR:
        return None
    return f"it lies {times:.2g} times as far from the sent arrays as usual; the limit is {FAR:g}"


def _apart(array: Array, other: Array | None = None) -> float:
    """Return the largest distance of two arrays' numbers, or of one's from 0; 0 for integers."""
    tensor = tensor_from_array(array)
    if not is_continuous(tensor) or not tensor.numel():
        return 0.0
    wide = torch.promote_types(tensor.real.dtype, torch.float32)  # half floats might overflow
    pieces = flat_reals(tensor).split(PIECE)
    if other is None:
        return max(float(piece.abs().max()) for piece in pieces)
    there = flat_reals(tensor_from_array(other)).split(PIECE)
    pairs = zip(pieces, there, strict=True)
    return max(float((piece.to(wide) - where.to(wide)).abs_().max()) for piece, where in pairs)
