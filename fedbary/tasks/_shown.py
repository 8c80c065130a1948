"""Which rows the columns of terms show alone: those that some combination of columns is 0 without.

A column of numbers v stands in terms as d functions: itself, powers, a logarithm, a spline. With a
constant they combine to functions f(v) that are 0 at any d values. So Σ f(v) r and Σ f(v) x are
sums over the rows of all other values: of v = 2 alone, if v is 0, 1 or 2 and the terms hold v and
v².

A natural spline combines to functions that are 0 from the third knot on, up to the last but two, or
but between five knots in a row. So a server that sets knots sets which rows these are.

Reference: de Boor, A Practical Guide to Splines, 1978, chapter IX (functions of least support).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from torch import Tensor

from fedbary.data.layout import Layout
from fedbary.data.terms import Term
from fedbary.errors import SettingError
from fedbary.runs.answered import unusual

SPAN = 4
"""Pieces of a cubic spline of least support."""


def marks(terms: Sequence[Term], layout: Layout, x: Tensor) -> np.ndarray:
    """Return which rows (N, D) each mark has, (N, J) bool: a level, or unusual values.

    So have rows in which several such are together in a term.
    """
    functions = dict[str, int]()
    for factor in dict.fromkeys(factor for term in terms for factor in term):
        own = factor.number if factor.how == "spline" else 1
        functions[factor.column] = functions.get(factor.column, 0) + own
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


def shown_by_knots(numbers: Tensor, knots: Tensor) -> Iterator[int]:
    """Yield how many of some numbers (N,) a spline with knots (k,) shows alone.

    Raises
    ------
    SettingError
        If the knots are not in order.
    """
    if not (knots.diff() > 0).all():
        raise SettingError("terms", "a spline with knots out of order", "knots that rise")
    below = (numbers[:, None] < knots).sum(0)
    yield int(below[2])
    yield int((numbers > knots[-3]).sum())
    up_to = (numbers[:, None] <= knots).sum(0)
    yield from (below[SPAN:] - up_to[:-SPAN]).tolist()
