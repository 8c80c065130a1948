"""The server's question for sums of columns, which standardise all sites alike: both sides.

See `fedbary.data.standardise` for why it is sometimes asked twice.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedbary.data.images import MAX_FLOAT
from fedbary.data.standardise import Sums
from fedbary.errors import RunError
from fedbary.tasks.shared.values import Dialogue, Question

NAME = "sums"

LARGEST_SUM = 1e280
"""The largest sum of squares that is believed, so that no sum over clients overflows."""


def ask(columns: int, classes: int = 0, pixels: int = 0, missing: bool = False) -> Dialogue[Sums]:
    """Ask once or twice, and return the sums over all sites that answered each time.

    The second question is for columns whose squares cancel.

    The last columns stand for the `classes`: 1 if a row is of the class, else 0. With `pixels` an
    image the rows are pixels, whose columns lie within ±10. With `missing` sites count each
    column's values too.

    Raises
    ------
    RunError
        If none answers.
    """
    shift = torch.zeros(columns, dtype=torch.float64)
    for _ in range(2):
        asked = {"shift": shift.tolist(), **({"missing": True} if missing else {})}
        believed = functools.partial(
            read, shift=shift, classes=classes, pixels=pixels, missing=missing
        )
        answers = yield Question(NAME, believed, asked)
        if not answers:
            raise RunError("no node answered with the sums of its columns")
        total = functools.reduce(operator.add, answers)
        if not total.cancelled:
            break
        shift = total.mean
    return total


def answer(columns: Tensor, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Sum up a site's columns (n, C) less the shift that the server names."""
    return told(Sums.of(columns, shift_of(asked), bool(asked.get("missing"))))


def shift_of(asked: Mapping[str, Any]) -> Tensor:
    """Return the shift (C,) that a question names."""
    return torch.tensor(asked["shift"], dtype=torch.float64)


def told(held: Sums) -> dict[str, Any]:
    """Return sums as an answer has them."""
    return {
        "count": held.count,
        "total": held.total.tolist(),
        "squares": held.squares.tolist(),
        **({} if held.seen is None else {"seen": held.seen.tolist()}),
    }


def read(
    metrics: Mapping[str, Any],
    most: int,
    shift: Tensor,
    classes: int = 0,
    pixels: int = 0,
    missing: bool = False,
) -> Sums:
    """Return the sums that an answer holds, of at most so many rows, or images of so many pixels.

    The last columns are those of classes.

    Raises
    ------
    ValueError
        If no rows have these sums and sums of squares; any error if something else is wrong with
        the answer.
    """
    rows = count(metrics, most * max(1, pixels))
    total, squares = (torch.tensor(metrics[k], dtype=torch.float64) for k in ("total", "squares"))
    if total.shape != shift.shape or squares.shape != shift.shape:
        raise ValueError(f"its sums have {tuple(total.shape)} and {tuple(squares.shape)} columns")
    seen = torch.tensor(metrics["seen"], dtype=torch.float64) if missing else None
    if seen is not None and (seen.shape != shift.shape or not _are_counts(seen, rows)):
        raise ValueError(f"no {rows} rows have so many values")
    possible = total.square() <= (rows if seen is None else seen) * squares * (1 + 1e-6)
    largest = rows * (2 * MAX_FLOAT) ** 2 if pixels else LARGEST_SUM
    if not (possible & (squares <= largest)).all():
        raise ValueError(f"no {rows} numbers have these sums and sums of squares")
    sums = Sums(rows, shift, total, squares, seen)
    if classes and not _of_classes(sums, classes):
        raise ValueError(f"no {rows} rows of {classes} classes have these sums")
    return sums


def _are_counts(counts: Tensor, most: int) -> bool:
    return bool(((counts >= 0) & (counts <= most) & (counts == counts.round())).all())


def _of_classes(sums: Sums, classes: int) -> bool:
    """Return whether rows with one class each can have these sums in the last columns.

    With N_c rows of a class, n in all and shift s: Σ (c − s) = N_c − n s, and Σ (c − s)² = N_c (1 −
    s)² + (n − N_c) s², where 0 ≤ N_c ≤ n and Σ_c N_c = n.
    """
    shift, rounding = sums.shift[-classes:], 1e-6 * sums.count
    held = sums.total[-classes:] + sums.count * shift
    squares = held * (1 - shift).square() + (sums.count - held) * shift.square()
    least, most, missing = held.min(), held.max(), (held.sum() - sums.count).abs()
    apart = (squares - sums.squares[-classes:]).abs().max()
    possible = -rounding <= least and most <= sums.count + rounding
    return bool(possible and missing <= rounding and apart <= rounding)


def count(metrics: Mapping[str, Any], most: int) -> int:
    """Return the number of rows of an answer; a ValueError if the site cannot have so many."""
    rows = int(metrics["count"])
    if not 1 <= rows <= most:
        raise ValueError(f"it claims {rows} rows but trains on {most}")
    return rows
