"""How far replies lie from what was sent, beside each other."""

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
"""Of fewer replies none can be said to be the far one."""

FAR = 100.0
"""How many times as far as usual a reply is refused for."""

NEAR = 10.0
"""How far a number may move in a round, whatever the others do."""

STANDS_OUT = 10.0
"""How many times as far as usual a reply is suspected for, if nobody can train after it."""


def farness(
    records: Sequence[ArrayRecord],
    like: ArrayRecord,
    keys: Collection[str],
    earlier: Sequence[float] = (),
) -> list[float]:
    """Return how many times as far as usual each reply lies from what was sent.

    A reply's distance is the largest of its numbers' distances. The usual one is the replies'
    median, of an even number the lower in the middle, but no less than a `FAR`-th of `NEAR` and of
    the largest number that was sent. So no reply is too far that moves no number by more: clients
    that stand still, or take a step where a large site takes thousands, make nobody far.

    Parameters
    ----------
    records : sequence of ArrayRecord
        The arrays of admitted replies, at least one.
    like : ArrayRecord
        What a sound reply looks like: of the model's arrays those that were sent.
    keys : collection of str
        The arrays that are compared.
    earlier : sequence of float
        Distances of other replies, from what was sent then, which the median is of too.
    """
    with workers() as pool:
        distances = list(pool.map(lambda record: distance(record, like, keys), records))
    largest = max((_apart(like[key]) for key in keys), default=0.0)
    usual = max(median_low([*earlier, *distances]), largest / FAR, NEAR / FAR)
    return [far / usual for far in distances]


def distance(record: ArrayRecord, like: ArrayRecord, keys: Collection[str]) -> float:
    """Return the largest distance of a reply's numbers from those of what was sent."""
    return max((_apart(record[key], like[key]) for key in keys), default=0.0)


def too_far(weights: float, others: float) -> str | None:
    """Say why a reply is refused whose arrays lie so many times as far away as usual; else None.

    Means and point weights may lie `FAR` times as far; other arrays, curvatures say, that by which
    honest clients differ more, `FAR`² times.
    """
    times = max(weights, others / FAR)
    if times <= FAR:
        return None
    return f"it lies {times:.2g} times as far from what was sent as usual; the limit is {FAR:g}"


def _apart(array: Array, other: Array | None = None) -> float:
    """Return the largest distance of two arrays' numbers, or of one's from 0; of integers 0."""
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
