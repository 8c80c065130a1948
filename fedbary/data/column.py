"""A column as its source has it: each cell as a number and as a name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from numbers import Number
from typing import Any

import numpy as np

from fedbary.data.cell_words import DIGITS, EXPONENT, MISSING, is_code, name_of
from fedbary.texts import SURROGATE

MAX_LEVELS = 50
"""Most different texts of a column; one with more is refused as names or notes."""


@dataclass(frozen=True, eq=False)
class Column:
    """N cells.

    Attributes
    ----------
    numbers : ndarray
        (N,) float64, NaN for a cell without one. True is 1, False is 0.
    texts : ndarray or None
        (N,) the cells as names; None for more than `MAX_LEVELS` different numbers.
    missing : ndarray
        (N,) bool: True for an empty cell.
    is_text : bool
        True if the cells are names: some are no numbers, or are codes that a number would change.
    unfit : str
        Type of cells that are neither numbers nor text, such as dates, or half a character; "" if
        there are none.
    """

    numbers: np.ndarray
    texts: np.ndarray | None
    missing: np.ndarray
    is_text: bool
    unfit: str = ""

    def cell(self, row: int) -> object:
        """Return what a cell says, for an error."""
        if self.texts is None or self.texts[row] == "nan":
            return float(self.numbers[row])
        return self.texts[row]

    def rows(self, kept: np.ndarray) -> Column:
        """Return some of the rows."""
        texts = None if self.texts is None else self.texts[kept]
        return replace(self, numbers=self.numbers[kept], texts=texts, missing=self.missing[kept])

    @property
    def values(self) -> np.ndarray:
        """The names, or else the numbers, by which rows are told apart."""
        return self.numbers if self.texts is None else self.texts


def column(cells: Any, named: bool = False) -> Column:
    """Return the column of some cells.

    Parameters
    ----------
    cells : Series or ndarray
        (N,): numbers, booleans or text; what is missing is NaN, NA, None, or a word of `MISSING`.
    named : bool
        True: keep the texts of any number of different numbers, as for classes.
    """
    import pandas

    held = pandas.Series(cells)
    if isinstance(held.dtype, pandas.CategoricalDtype):
        held = held.astype(held.cat.categories.dtype if held.notna().all() else object)
    absent = held.isna().to_numpy()
    broken = _broken(held)
    if broken.any():
        whole = held.astype(object).where(~broken, "")
        unfit = f"half a character (a lone surrogate) in row {broken.argmax() + 1}"
        return replace(_of_texts(whole.astype(str), absent, named), unfit=unfit)
    if not _is_plain(held):
        return replace(_of_texts(held.astype(str), absent, named), unfit=str(held.dtype))
    if held.dtype == object:
        held = held.map(_text, na_action="ignore").astype(object)
    if pandas.api.types.is_bool_dtype(held.dtype):
        held = held.astype(object).map({True: "True", False: "False"})
    if pandas.api.types.is_numeric_dtype(held.dtype):
        return _of_numbers(held, absent, named)
    return _of_texts(held, absent, named)


def _broken(held: Any) -> np.ndarray:
    """Return which cells are text that holds a lone surrogate, (N,) bool."""
    if held.dtype != object:
        return np.zeros(len(held), dtype=bool)
    cells = held.tolist()
    return np.array([isinstance(c, str) and SURROGATE.search(c) is not None for c in cells])


def _is_plain(held: Any) -> bool:
    """Return whether cells are numbers, booleans or text."""
    from pandas.api import types

    if held.dtype == object:
        return all(isinstance(cell, str | Number) for cell in held[held.notna()].tolist())
    is_number = types.is_numeric_dtype(held.dtype) and not types.is_complex_dtype(held.dtype)
    return bool(is_number or types.is_bool_dtype(held.dtype) or types.is_string_dtype(held.dtype))


def _of_numbers(held: Any, absent: np.ndarray, named: bool) -> Column:
    numbers = held.to_numpy(np.float64, na_value=np.nan)
    codes, found = held.factorize()
    large = held.dtype.kind in "iu" and bool((abs(numbers) > 2**53).any())
    texts = None
    if named or large or absent.any() or len(found) <= MAX_LEVELS:
        names = [_text(number) for number in found.tolist()]
        texts = np.array([*names, "nan"], dtype=object)[codes]
    return Column(numbers, texts, absent, large)


def _of_texts(held: Any, absent: np.ndarray, named: bool) -> Column:
    import pandas

    codes, found = held.factorize()
    numbers = pandas.to_numeric(held, errors="coerce").to_numpy(np.float64)
    if not named and len(found) > MAX_LEVELS and np.isfinite(numbers).all() and not _coded(found):
        return Column(numbers, None, absent, False)
    names = np.array([*map(name_of, found.tolist()), ""], dtype=object)
    each = pandas.to_numeric(pandas.Series(names), errors="coerce").to_numpy(np.float64, copy=True)
    each[names == "True"], each[names == "False"] = 1.0, 0.0
    nothing = np.array([name.casefold() in MISSING for name in names])
    each[nothing] = np.nan
    is_text = bool((np.isnan(each) & ~nothing).any()) or _coded(names[~nothing])
    return Column(each[codes], names[codes], nothing[codes], is_text)


def _coded(names: Any) -> bool:
    """Return whether a number would change some of the names, as it does codes such as 007."""
    import pandas

    held = pandas.Series(names, dtype=object)
    digits = held[held.str.fullmatch(DIGITS)]
    return len(names) > 0 and (
        any(map(is_code, digits)) or bool(held.str.fullmatch(EXPONENT).all())
    )


def _text(cell: object) -> str:
    """Return the name of a cell; of a float that is whole the digits."""
    if isinstance(cell, float) and cell.is_integer():
        return f"{cell:.0f}"
    return name_of(cell)
