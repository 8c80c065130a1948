"""Which rows the columns of terms show alone: those that some combination of columns is 0 without.

A column of numbers v stands in terms as d functions: itself, powers, a logarithm, a spline. With a
constant they combine to functions f(v) that are 0 at any d values. So Σ f(v) r and Σ f(v) x are
sums over the rows of all other values: of v = 2 alone, if v is 0, 1 or 2 and the terms hold v and
v².

A natural spline combines to functions that are 0 from the third knot on, up to the last but two, or
but between five knots in a row. So a server that sets knots sets which rows these are.

A server that sets coefficients sets the rows' weights in a curvature, such as p (1 − p). At an
extreme point all but a few are nearly 0. Weights w count as those of (Σ w)²/Σ w² equal rows.

A server that sets offsets and scales of columns sets where float32 rounds them. Rounding makes
steps of them, and a column that is 0 but for one row.

Reference: de Boor, A Practical Guide to Splines, 1978, chapter IX (functions of least support).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedbary.data.layout import Layout
from fedbary.data.terms import Term
from fedbary.errors import SettingError
from fedbary.runs.answered import unusual

OF = "functions of "
"""What a site keeps of a column, by the column's name."""

SPAN = 4
"""Pieces of a cubic spline of least support."""

PART = 4
"""Rows of a set for each that has to have weight; `least` where that is fewer."""

STRETCH = 30
"""Least rows of a tenth of a column in which rows have to have weight."""

CANCEL, FLAT, RANGE = 1e8, 1e-4, 1e30
"""Largest part of a column that may cancel, least spread beside its size, and largest size."""


class FewShown(SettingError):
    """The server asks for what would show few rows: a refusal tells one bit, and counts."""


def functions_of(terms: Sequence[Term]) -> dict[str, list[str]]:
    """Return the names of each column's functions in terms; a spline has several."""
    found: dict[str, list[str]] = {}
    for factor in dict.fromkeys(factor for term in terms for factor in term):
        number = factor.number if factor.how == "spline" else 1
        names = [f"{factor.name} {k}" for k in range(number)]
        found.setdefault(OF + factor.column, []).extend(names)
    return found


def marks(
    terms: Sequence[Term],
    layout: Layout,
    x: Tensor,
    every: Mapping[str, Sequence[str]] | None = None,
) -> np.ndarray:
    """Return which rows (N, D) each mark has, (N, J) bool: a level, or unusual values.

    So have rows in which several such are together in a term. `every` are the functions of columns
    in all runs, by default those of the terms.
    """
    every = functions_of(terms) if every is None else every
    used = {factor.column for term in terms for factor in term}
    functions = {column: len(every[OF + column]) for column in used}
    parts: dict[str, list[np.ndarray]] = {}
    widths = [max(1, len(levels)) for _, levels in layout.columns]
    for (name, _), part in zip(layout.columns, x.split(widths, 1), strict=True):
        own = part.numpy().T
        if name in functions:
            parts[name] = list(own == 1) if len(own) > 1 else unusual(own[0], functions[name])
    found = [mark for part in parts.values() for mark in part]
    for term in terms:
        held = [parts[name] for name in dict.fromkeys(factor.column for factor in term)]
        some = [part for part in held if part]
        if len(some) > 1:
            found += [np.logical_and.reduce(each) for each in itertools.product(*some)]
    return np.stack(found, 1) if found else np.zeros((len(x), 0), dtype=bool)


def stretches(terms: Sequence[Term], layout: Layout, x: Tensor) -> np.ndarray:
    """Return the rows (N, J) of each tenth of a column with two functions or more, or of 30 rows.

    Such can leave weight to many rows at one place, and to few at another.
    """
    numbers = [n for n, levels in layout.columns if not levels]
    used = [n for n in numbers if len(functions_of(terms).get(OF + n, ())) > 1]
    found = np.zeros((len(x), 0), dtype=bool)
    for name in used:
        order = x[:, layout.features.index(name)].numpy().argsort(kind="stable")
        for rows in np.array_split(order, max(1, min(10, len(x) // STRETCH))):
            found = np.c_[found, np.isin(np.arange(len(x)), rows)]
    return found


def shown_by_knots(numbers: Tensor, knots: Tensor) -> Iterator[int]:
    """Yield how many of some numbers (N,) a spline with knots (k,) that rise shows alone."""
    below = (numbers[:, None] < knots).sum(0)
    yield int(below[2])
    yield int((numbers > knots[-3]).sum())
    up_to = (numbers[:, None] <= knots).sum(0)
    yield from (below[SPAN:] - up_to[:-SPAN]).tolist()


def require_weight(
    weights: Tensor, usual: Tensor, there: Tensor, sets: np.ndarray, least: int
) -> None:
    """Raise a FewShown if few rows have weight in sums over all rows, or over those of a set.

    Exposures make weights unlike at any point. So half as many rows as without slopes are enough.

    Parameters
    ----------
    weights, usual, there
        The weights of rows in each kind of sums, those without slopes, and whether they take part
        in it, (N, K).
    sets
        The rows of each set, (N, J) bool.
    least
        Rows that have to have weight, or a quarter of those of the set.
    """
    every = torch.from_numpy(np.c_[np.ones(len(sets), dtype=bool), sets])
    for held in every.T:
        for column, before, inside in zip(weights.T, usual.T, there.T, strict=True):
            rows = held & inside
            count = int(rows.sum())
            enough = min(least, count / PART, _alike(before[rows]) / 2) if count else 0
            if count and not _alike(column[rows]) >= enough:
                allowed = "a point at which more of a site's rows have weight"
                raise FewShown("coefficients", "weight in few rows", allowed)


def _alike(weights: Tensor) -> float:
    """Return how many equal weights count as these (N,)."""
    part = weights.double() / weights.abs().max()
    return float(part.sum() ** 2 / part.square().sum())


def require_digits(columns: Tensor, centre: Tensor, turn: Tensor) -> None:
    """Raise a FewShown unless (c − centre) turnᵀ of columns c (N, P) has the digits of float32."""
    away = columns - centre
    found, passed = away @ turn.T, (away.abs() @ turn.abs().T).amax(0)
    size, seen = found.abs().amax(0), found.float()
    sound = (passed <= CANCEL * size) & (size <= RANGE) & ((size >= 1 / RANGE) | (size == 0))
    sound &= (seen == seen[0]).all(0) | (found.std(0) >= FLAT * size)
    if not sound.all():
        allowed = "a centre and a turn that keep the digits of columns"
        raise FewShown("facts", "columns that are rounded", allowed)
