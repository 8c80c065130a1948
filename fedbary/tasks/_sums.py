"""The server's questions for sums over a site's rows: both the asking and the answering side.

**Sums of columns** standardise all sites alike. See `fedbary.data.standardise` for why they are
sometimes asked twice.

**Medians** come from counts alone. A median lies within a standard deviation of the mean. Fifteen
points cut this range into sixteen parts. Sites count a column's values up to each point; the part
that holds the median is the next range. After four answers the median is known to 1/32768 of the
standard deviation.

**Second moments** are of standardised columns. A site sends the upper triangle of Σ z zᵀ over its
rows, z = (x − mean)/std, and their number. The sum over the sites is that of all rows, however they
are split.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from fedbary.data.images import MAX_FLOAT
from fedbary.data.sentinels import sentinels
from fedbary.data.standardise import Standardiser, Sums
from fedbary.errors import RunError
from fedbary.tasks._values import Dialogue, Question

NAME, MEDIANS, MOMENTS = "sums", "below", "moments"
"""The questions' names."""

LARGEST_SUM = 1e280
"""The largest sum of squares that is believed, so that no sum over clients overflows."""

UNSURE = 1e-3
"""Part by which a sum of squares of standardised columns may be larger than the number of rows."""

PARTS, TIMES = 16, 4
"""Parts of a range for each answer with counts, and the number of answers."""

ROUNDING = 1e-8
"""Tolerance of second moments' eigenvalues below 0, as a fraction of the largest."""


def ask(
    columns: int,
    classes: int = 0,
    pixels: int = 0,
    missing: bool = False,
    beside: Callable[[Mapping[str, Sums]], Iterable[str]] = lambda answers: (),
    also: Mapping[str, Any] = MappingProxyType({}),
) -> Dialogue[Sums]:
    """Ask once or twice, and return the sums over all sites that answered each time.

    The second question is for columns whose squares cancel.

    The last columns stand for the `classes`: 1 if a row is of the class, else 0. With `pixels` an
    image the rows are pixels, whose columns lie within ±10. With `missing` sites count each
    column's values too. `beside` compares the sites by the last answers, see `Question`. `also`
    goes with each question.

    Raises
    ------
    RunError
        If none answers.
    """
    shift = torch.zeros(columns, dtype=torch.float64)
    for _ in range(2):
        asked = {**also, "shift": shift.tolist(), **({"missing": True} if missing else {})}
        believed = functools.partial(
            read, shift=shift, classes=classes, pixels=pixels, missing=missing
        )
        told = functools.partial(_at_last, beside=beside, again=not shift.any())
        answers = yield Question(NAME, believed, asked, beside=told)
        if not answers:
            raise RunError("no node answered with the sums of its columns")
        total = functools.reduce(operator.add, answers)
        if not total.cancelled:
            break
        shift = total.mean
    return total


def _at_last(
    answers: Mapping[str, Sums],
    beside: Callable[[Mapping[str, Sums]], Iterable[str]],
    again: bool,
) -> Iterable[str]:
    """Compare sites, unless their sums are cancelled and asked for again."""
    cancelled = answers and functools.reduce(operator.add, answers.values()).cancelled
    return () if again and cancelled else beside(answers)


def answer(columns: Tensor, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Sum up a site's columns (n, C) less the shift that the server names.

    The answer also says of each column whether a number far from all others repeats.
    """
    repeated = [int(bool(sentinels(column))) for column in columns.T.double().numpy()]
    held = Sums.of(columns, shift_of(asked), bool(asked.get("missing")))
    return {**told(held), "repeated": repeated}


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
    repeated = tuple(int(flag) for flag in metrics.get("repeated", ()))
    if len(repeated) not in (0, len(shift)) or not {*repeated} <= {0, 1}:
        raise ValueError(f"it marks {len(repeated)} columns whose numbers repeat")
    sums = Sums(rows, shift, total, squares, seen, tuple(map(bool, repeated)))
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


def ask_medians(sums: Sums) -> Dialogue[Tensor]:
    """Return the median of each column (C,) of given sums, see `ask_quantiles`."""
    columns = range(len(sums.mean))
    return ask_quantiles(sums, torch.full((len(columns),), 0.5), columns)


def ask_quantiles(
    sums: Sums,
    at: Tensor,
    columns: Sequence[int],
    also: Mapping[str, Any] = MappingProxyType({}),
    times: int = TIMES,
) -> Dialogue[Tensor]:
    """Return quantiles (Q,), each of a column of given sums, over all sites that answer.

    `also` goes with each of the questions, `times` in number. Counts below a point bound all
    quantiles of its column.

    That at q lies between mean − std √((1 − q)/q) and mean + std √(q/(1 − q)) (Cantelli).

    Raises
    ------
    RunError
        If none answers.
    """
    mean, std, at = sums.mean[[*columns]], sums.var.sqrt()[[*columns]], at.double()
    low, high = mean - std * ((1 - at) / at).sqrt(), mean + std * (at / (1 - at)).sqrt()
    inner = torch.arange(1, PARTS).double() / PARTS
    of = torch.tensor([*columns])
    same = of[:, None] == of.repeat_interleave(PARTS - 1)
    for _ in range(times):
        points = low[:, None] + (high - low)[:, None] * inner
        asked = {**also, "points": points.flatten().tolist(), "of-columns": [*columns]}
        answers = yield Question(MEDIANS, functools.partial(read_medians, columns=len(low)), asked)
        if not answers:
            raise RunError("no node answered with the counts of its columns")
        below, seen = (sum(part[1:], part[0]) for part in zip(*answers, strict=True))
        under, every = below.flatten() < (seen * at)[:, None], points.flatten().expand(same.shape)
        low = low.maximum(every.where(same & under, -torch.inf).amax(1))
        high = high.minimum(every.where(same & ~under, torch.inf).amin(1))
    return (low + high) / 2


def answer_medians(columns: Tensor, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Count the named of a site's columns (n, C), whose missing values are NaN."""
    columns = columns[:, list(asked["of-columns"])]
    points = torch.tensor(asked["points"], dtype=torch.float64).reshape(columns.shape[1], -1)
    below = [(columns <= each).sum(0) for each in points.unbind(1)]
    return {
        "count": len(columns),
        "below": torch.stack(below, 1).flatten().tolist(),
        "seen": (~columns.isnan()).sum(0).tolist(),
    }


def read_medians(metrics: Mapping[str, Any], most: int, columns: int) -> tuple[Tensor, Tensor]:
    """Return the counts (C, points) and (C,) that an answer holds; an error if it holds none."""
    rows = count(metrics, most)
    seen = torch.tensor(metrics["seen"], dtype=torch.float64)
    below = torch.tensor(metrics["below"], dtype=torch.float64).reshape(columns, PARTS - 1)
    if len(seen) != columns:
        raise ValueError(f"it counts {len(seen)} columns")
    every = torch.cat([torch.zeros(columns, 1).double(), below, seen[:, None]], 1)
    if not ((every.diff() >= 0).all() and (seen <= rows).all()):
        raise ValueError(f"no {rows} rows have these counts")
    return below, seen


def ask_moments(scale: Standardiser, rows: float) -> Dialogue[Tensor]:
    """Ask for the triangles; return the mean of z zᵀ over all rows, (D, D) float64.

    `rows` is the number of rows of all sites by whose sums `scale` is.

    Raises
    ------
    RunError
        If no site answers.
    """
    sites = yield from ask_moments_of_sites(scale, rows)
    count, moments = (functools.reduce(operator.add, part) for part in zip(*sites, strict=True))
    found: Tensor = moments / count
    return found


def ask_moments_of_sites(
    scale: Standardiser, rows: float, also: Mapping[str, Any] = MappingProxyType({})
) -> Dialogue[list[tuple[int, Tensor]]]:
    """Return each site's rows and Σ z zᵀ, (D, D) float64; all else is as in `ask_moments`."""
    asked = {**also, "mean": scale.mean.tolist(), "std": scale.std.tolist()}
    read = functools.partial(read_moments, columns=len(scale.mean), rows=rows)
    sites = yield Question(MOMENTS, read, asked)
    if not sites:
        raise RunError("no node answered with the second moments of its features")
    return sites


def answer_moments(x: Tensor, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Answer with the triangle of a site's features (n, D)."""
    mean, std = (torch.tensor(asked[key], dtype=torch.float64) for key in ("mean", "std"))
    z = (x.cpu().double() - mean) / std
    moments = z.T @ z
    row, column = torch.triu_indices(*moments.shape)
    return {"count": len(x), "moments": moments[row, column].tolist()}


def read_moments(
    metrics: Mapping[str, Any], most: int, columns: int, rows: float
) -> tuple[int, Tensor]:
    """Return the rows and Σ z zᵀ (D, D) that an answer holds, of at most so many rows.

    Over all N `rows` a column's Σ z² is N, as they set its scale. So a site's is at most N.

    Raises
    ------
    ValueError
        If no rows have these second moments; any error if something else is wrong with the answer.
    """
    own = count(metrics, most)
    triangle = torch.tensor(metrics["moments"], dtype=torch.float64)
    row, column = torch.triu_indices(columns, columns)
    if triangle.shape != row.shape:
        raise ValueError(f"{len(triangle)} second moments of {columns} columns")
    moments = torch.zeros(columns, columns, dtype=torch.float64)
    moments[row, column] = moments[column, row] = triangle
    if not triangle.abs().max() <= (1 + UNSURE) * rows:
        raise ValueError(f"second moments above {rows:.0f}, the rows of all sites")
    values = torch.linalg.eigvalsh(moments)
    if values[0] < -ROUNDING * values[-1]:
        raise ValueError(f"no {own} rows have these second moments")
    return own, moments
