"""Terms of a generalised linear model, and the columns that they make of a table's rows.

The grammar is small, and nothing in it runs code:

    age                 a column of numbers, or of levels against a reference
    age^2               a power from 2 to 5
    log(dose)           the natural logarithm of numbers above 0
    spline(age,4)       a natural cubic spline of 4 columns; linear beyond its outer knots
    age:sex             products of the columns of both
    `body weight`       a name with blanks or signs

Blanks stand between terms. With knots t_1 < … < t_k, k = df + 1, and c = max(·, 0)³, a spline's
columns are x and, for j up to k − 2 and with h = t_k − t_{k−1},

    (c(x − t_j) − c(x − t_{k−1}) (t_k − t_j)/h + c(x − t_k) (t_{k−1} − t_j)/h) / (t_k − t_1)².

Reference: Harrell, Regression Modeling Strategies, 2015, section 2.4.5.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from itertools import product
from operator import mul

import torch
from torch import Tensor

from fedbary.data.layout import Layout
from fedbary.data.tables import perhaps
from fedbary.errors import CellError, SettingError
from fedbary.texts import listed

ALLOWED = "terms such as age, sex, age:sex, age^2, log(dose) and spline(age,4), with blanks between"
MOST_POWER, MOST_DF = 5, 10
OUTER = 0.05
"""Share of the rows below a spline's first knot, and above its last; the others divide evenly."""

_NAME = r"(?:`([^`]+)`|([^\s`:^(),+*=~|-][^\s`:^(),+*=~|]*))"
_FACTOR = re.compile(rf"(?:(log|spline)\({_NAME}(?:,\s*(\d+))?\)|{_NAME}(?:\^(\d+))?)(?=[\s:]|$)")


@dataclass(frozen=True)
class Factor:
    """A column of a table, as it stands (`how` ""), or its power, logarithm or spline.

    `number` is the power's exponent, or the number of a spline's columns.
    """

    column: str
    how: str = ""
    number: int = 1

    @property
    def name(self) -> str:
        """Its text in `terms`."""
        forms = {"": "{0}", "power": "{0}^{1}", "log": "log({0})", "spline": "spline({0},{1})"}
        return forms[self.how].format(self.column, self.number)

    @property
    def quantiles(self) -> tuple[float, ...]:
        """The quantiles of the column at which a spline has its knots."""
        if self.how != "spline":
            return ()
        step = (1 - 2 * OUTER) / self.number
        return tuple(OUTER + step * k for k in range(self.number + 1))


Term = tuple[Factor, ...]


@cache
def parse(text: str) -> tuple[Term, ...]:
    """Return the terms of a text; a SettingError names the place of what is none."""
    found, factors, place = list[Term](), list[Factor](), len(text) - len(text.lstrip())
    while place < len(text):
        match = _FACTOR.match(text, place)
        if match is None:
            raise _unread(text, place)
        factors.append(_factor(match, text))
        place = match.end()
        if text[place : place + 1] != ":":
            found.append(tuple(factors))
            factors = []
            place += len(text[place:]) - len(text[place:].lstrip())
        else:
            place += 1
    if factors or not found:
        raise _unread(text, len(text))
    if len({frozenset(term) for term in found}) < len(found):
        raise SettingError("terms", text, "each term once")
    return tuple(found)


def _factor(match: re.Match[str], text: str) -> Factor:
    how, quoted, name, number, bare_quoted, bare, power = match.groups()
    column = quoted or name or bare_quoted or bare
    if how == "spline" and not 2 <= int(number or 0) <= MOST_DF:
        allowed = f"spline({column},4): 2 to {MOST_DF} columns"
        raise SettingError("terms", match[0], allowed)
    if how == "log" and number or power and not 2 <= int(power) <= MOST_POWER:
        raise SettingError("terms", match[0], f"log({column}), or a power from 2 to {MOST_POWER}")
    return Factor(column, how or ("power" if power else ""), int(number or power or 1))


def _unread(text: str, place: int) -> SettingError:
    rest = text[place:].split(maxsplit=1)
    where = f"{rest[0]} at character {place + 1}" if rest else f"{text!r} ends without a term"
    return SettingError("terms", where, ALLOWED)


@dataclass(frozen=True, eq=False)
class Design:
    """The columns that terms make of rows.

    Parameters
    ----------
    terms : sequence of Term
        The terms, see `require_columns`.
    layout : Layout
        Layout of the rows.
    references : mapping of str to str
        For each column of levels the one that has no column.
    knots : mapping of Factor to Tensor
        The knots of each spline.
    """

    terms: Sequence[Term]
    layout: Layout
    references: Mapping[str, str]
    knots: Mapping[Factor, Tensor]

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names, such as ``sex=male:spline(age,4)[2]``."""
        return tuple(
            ":".join(parts) for term in self.terms for parts in product(*self._named(term))
        )

    def _named(self, term: Term) -> Iterator[list[str]]:
        for factor in term:
            if levels := self._levels(factor):
                yield [f"{factor.column}={level}" for level in levels]
            elif factor.how == "spline":
                yield [f"{factor.name}[{k + 1}]" for k in range(factor.number)]
            else:
                yield [factor.name]

    def _levels(self, factor: Factor) -> list[str]:
        """Return the levels of a factor that have a column; none of numbers."""
        levels = dict(self.layout.columns)[factor.column]
        return [level for level in levels if level != self.references[factor.column]]

    @property
    def terms_of_columns(self) -> tuple[Term, ...]:
        """The term of each column."""
        return tuple(term for term in self.terms for _ in product(*self._named(term)))

    def columns(self, x: Tensor) -> Tensor:
        """Return the columns (N, P), float64, of rows (N, D) in their own units."""
        found = []
        for term in self.terms:
            for parts in product(*(self._columns(factor, x).unbind(1) for factor in term)):
                found.append(reduce(mul, parts))
        return torch.stack(found, 1)

    def _columns(self, factor: Factor, x: Tensor) -> Tensor:
        features = self.layout.features
        if levels := self._levels(factor):
            places = [features.index(f"{factor.column}={level}") for level in levels]
            return x[:, places].double()
        numbers = x[:, features.index(factor.column)].double()
        if factor.how == "spline":
            return spline(numbers, self.knots[factor])
        return (numbers.log() if factor.how == "log" else numbers.pow(factor.number))[:, None]

    def require(self, x: Tensor) -> None:
        """Raise a CellError if a logarithm is of numbers that are not above 0."""
        for factor in {f: None for term in self.terms for f in term if f.how == "log"}:
            if (x[:, self.layout.features.index(factor.column)] <= 0).any():
                said = "numbers of 0 or less"
                raise CellError(factor.name, said, "numbers above 0", f"{factor.name} of {said}")


def require_columns(terms: Sequence[Term], layout: Layout, source: str) -> None:
    """Raise a SettingError if a term names no column, or wants numbers of a column of levels."""
    held = dict(layout.columns)
    for factor in (factor for term in terms for factor in term):
        if factor.column not in held:
            raise CellError("terms", factor.column, perhaps(factor.column, source, list(held)))
        if factor.how and (levels := held[factor.column]):
            said = f"{factor.name}, where {factor.column} holds {listed(levels[:3])}"
            raise CellError("terms", said, f"{factor.column} alone, or a column of numbers")


def spline(x: Tensor, knots: Tensor) -> Tensor:
    """Return the columns (N, k − 1) of the natural cubic spline of numbers (N,) at knots (k,)."""
    *inner, before, last = knots.double().unbind()
    scale = (last - knots[0]) ** 2

    def cubed(knot: Tensor) -> Tensor:
        return (x - knot).clamp_min(0) ** 3

    bent = [
        cubed(knot)
        - cubed(before) * (last - knot) / (last - before)
        + cubed(last) * (before - knot) / (last - before)
        for knot in inner
    ]
    return torch.stack([x, *(each / scale for each in bent)], 1)
