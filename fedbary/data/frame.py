"""A table as its source has it: cells, columns with their types, and rows with a target."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from numbers import Number
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedbary.data.deal import Split, checked_split
from fedbary.errors import CellError, SettingError
from fedbary.texts import SURROGATE, shown

if TYPE_CHECKING:
    from pandas import DataFrame


MISSING = frozenset({"", "na", "n/a", "#n/a", "<na>", "nan", "null", "?"})
"""Texts that stand for a missing value, in capital or small letters."""

BOOLEANS = {"true": "True", "false": "False"}

_WHOLE = re.compile(r"([+-]?(?:0|[1-9]\d*))\.0+", re.ASCII)

DIGITS = r"[+-]?(?:0\d+|\d{16,})"
"""Digits that may be no number."""

EXPONENT = r"\d+E\d+"
"""`1E2` in every cell: a code, for programs write 1E+02."""

_NUMBER = "a number such as -1163.74: a point, no separators, no % and no currency"
_DATE = "a number, such as days since a date: dates and times are not read"
_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"

_DISGUISED = (
    (r"[+−–-]?\d{1,3}(?:[,.'’_ \u00a0\u202f]\d{3})+(?:[.,]\d+)?", _NUMBER),
    (r"(?=.*[^\x00-\x7f])[+−–-]?[\d٫٬.,]+", _NUMBER),
    (r"0x[\da-f]+", _NUMBER),
    (r"[+−–-]?\d*,\d+", _NUMBER),
    (r"[−–]\d+(?:\.\d+)?|\([\d.,]+\)", _NUMBER),
    (r"[+−–-]?[\d.,]+ ?%", _NUMBER),
    (r"[+−–-]?[$€£¥] ?[\d.,]*\d|[+−–-]?[\d.,]*\d ?[$€£¥]", _NUMBER),
    (r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}(?:[T ].*)?", _DATE),
    (r"\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}(?: .*)?", _DATE),
    (rf"(?:\d+[ -])?{_MONTH}(?:[ -]\d+,?)?[ -]\d{{2,4}}", _DATE),
    (r"\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?", _DATE),
)
"""Texts that people read as numbers or dates, each with what is taken in their place."""

_WITH_UNIT = re.compile(r"[+-]?\d[\d.,]*\s?(?:(\D+)|([^\w\s]\D*?)\s?\d[\d.,]*)|(Q)[1-4] \d+")


def plain(text: object) -> str:
    """Return a text in one form of Unicode, without space around it."""
    return unicodedata.normalize("NFC", str(text)).strip()


def name_of(cell: object) -> str:
    """Return the name of a class or a level that a cell says."""
    text = plain(cell)
    if whole := _WHOLE.fullmatch(text):
        return whole[1]
    return BOOLEANS.get(text.casefold(), text)


def is_code(name: str) -> bool:
    """Return whether a name would lose digits as a number: a leading zero, or those beyond 2^53."""
    if not re.fullmatch(DIGITS, name, re.ASCII):
        return False
    digits = name.lstrip("+-")
    return digits[0] == "0" or len(digits) > 16 or int(digits) > 2**53


def disguised(texts: Iterable[str]) -> str:
    """Return the plain form of texts that people read as numbers or dates; "" for other texts.

    Plain numbers may be among them.
    """
    held = set(texts)
    for form, instead in _DISGUISED:
        odd = {text for text in held if re.fullmatch(form, text, re.IGNORECASE)}
        if odd and all(re.fullmatch(r"[+-]?[\d.,' ]+", text) for text in held - odd):
            return instead
    return ""


def unit_of(texts: Iterable[str]) -> str:
    """Return the unit behind a number, or the sign between two, in all of some texts; or ""."""
    found = [_WITH_UNIT.fullmatch(text) for text in texts]
    units = {match[match.lastindex or 0] if match else "" for match in found}
    return units.pop() if len(units) == 1 and len(found) > 1 else ""


def order_of(names: Iterable[str]) -> list[str]:
    """Return names in their order: whole numbers by size, others in alphabetical order."""
    held = sorted(names)
    if all(re.fullmatch(r"[+-]?\d+", name, re.ASCII) for name in held):
        return sorted(held, key=Decimal)  # int refuses more than 4,300 digits
    return held


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

    def without(self, words: Collection[str]) -> Column:
        """Return the column with the cells empty that equal one of some words, as text or number.

        What is left decides again whether the cells are numbers.
        """
        import pandas

        numbers = numbers_of_words(words)
        if self.texts is None:
            gone = np.isin(self.numbers, list(numbers))
            return replace(
                self, numbers=np.where(gone, np.nan, self.numbers), missing=self.missing | gone
            )
        names, different = {*map(name_of, words)}, set(self.texts.tolist())
        coded = filter(is_code, different) if self.is_text else ()
        alike = {text for text in different.difference(coded) if _number(text) in numbers}
        empty = different & names | alike
        if self.unfit or not empty:
            return self
        left = np.where(np.isin(self.texts, list(empty)), "", self.texts)
        return _of_texts(pandas.Series(left, dtype=object), True)

    @property
    def values(self) -> np.ndarray:
        """The names, or else the numbers, by which rows are told apart."""
        return self.numbers if self.texts is None else self.texts

    @property
    def names(self) -> list[str]:
        """The cells as names, the same for a number and for its text."""
        return [text_of(cell) for cell in self.values.tolist()]


def numbers_of_words(words: Iterable[str]) -> set[float]:
    """Return the numbers among some words, in float64 and as float32 rounds them.

    Codes such as 009 are no numbers, nor is what Python alone reads as one, such as 1_0.
    """
    plain_words = [word for word in words if not is_code(word) and "_" not in word]
    exact = {number for word in plain_words if not np.isnan(number := _number(word))}
    with np.errstate(over="ignore"):
        rounded = {float(np.float32(number)) for number in exact}
    return exact | {number for number in rounded if np.isfinite(number)}


def _number(text: str) -> float:
    """Return the number that a text is; NaN for none."""
    try:
        return float(text)
    except ValueError:
        return np.nan


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
        return replace(_of_texts(whole.astype(str), named), unfit=unfit)
    if not _is_plain(held):
        return replace(_of_texts(held.astype(str), named), unfit=str(held.dtype))
    if held.dtype == object:
        held = held.map(text_of, na_action="ignore").astype(object)
    if pandas.api.types.is_bool_dtype(held.dtype):
        held = held.astype(object).map({True: "True", False: "False"})
    if pandas.api.types.is_numeric_dtype(held.dtype):
        return _of_numbers(held, absent, named)
    return _of_texts(held, named)


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
        names = [text_of(number) for number in found.tolist()]
        texts = np.array([*names, "nan"], dtype=object)[codes]
    return Column(numbers, texts, absent, large)


def _numbers(texts: Any) -> np.ndarray:
    """Return the nearest number to each text, which pandas 2 may miss; NaN where it is none."""
    import pandas

    found = pandas.to_numeric(texts, errors="coerce").to_numpy(np.float64, copy=True)
    known = np.isfinite(found)
    found[known] = texts.to_numpy(object)[known].astype(np.float64)
    return found


def _of_texts(held: Any, named: bool) -> Column:
    import pandas

    codes, found = held.factorize()
    numbers = _numbers(held)
    if not named and len(found) > MAX_LEVELS and np.isfinite(numbers).all() and not _coded(found):
        return Column(numbers, None, np.zeros(len(numbers), dtype=bool), False)
    names = np.array([*map(name_of, found.tolist()), ""], dtype=object)
    each = _numbers(pandas.Series(names))
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


def text_of(cell: object) -> str:
    """Return the name of a cell; of a float that is whole the digits."""
    if isinstance(cell, float) and cell.is_integer():
        return f"{cell:.0f}"
    return name_of(cell)


Splits = Sequence[tuple[np.ndarray, np.ndarray]]

TARGET = "target"
"""Name in errors of the column that is predicted."""


@dataclass(frozen=True, eq=False)
class Frame:
    """N rows, before they are coded as numbers.

    Attributes
    ----------
    name : str
        Their source.
    columns : Mapping[str, Column]
        Columns that may be inputs, by name, (N,) each.
    target : Column or None
        Values to predict, (N,); None if the source names none.
    splits : tuple of Split
        The splits that the source prescribes; empty if it prescribes none.
    classes : tuple of str
        The classes in the order that the source gives them; empty if it gives none.
    ids : ndarray or None
        Names of the rows as they are written, (N,); None if no column names them.
    groups : Tensor or None
        The group of each row, (N,) int64; None where each stands alone.
    """

    name: str
    columns: Mapping[str, Column]
    target: Column | None
    splits: tuple[Split, ...] = ()
    classes: tuple[str, ...] = ()
    ids: np.ndarray | None = None
    groups: Tensor | None = None

    @property
    def count(self) -> int:
        """N."""
        return len(next(iter(self.columns.values())).missing)

    def without(self, words: Collection[str]) -> Frame:
        """Return the frame with the cells empty that equal one of some words."""
        if not words:
            return self
        columns = {name: held.without(words) for name, held in self.columns.items()}
        target = None if self.target is None else self.target.without(words)
        return replace(self, columns=columns, target=target)

    def rows(self, kept: np.ndarray) -> Frame:
        """Return some of the rows; splits, which number all of them, are gone."""
        columns = {name: held.rows(kept) for name, held in self.columns.items()}
        target = None if self.target is None else self.target.rows(kept)
        groups = None if self.groups is None else self.groups[torch.from_numpy(kept)]
        return replace(
            self,
            columns=columns,
            target=target,
            splits=(),
            ids=None if self.ids is None else self.ids[kept],
            groups=groups,
        )


def frame(
    name: str,
    columns: Mapping[str, Any],
    target: Any,
    splits: Splits = (),
    classes: Sequence[str] = (),
) -> Frame:
    """Return the frame that columns and targets describe.

    Parameters
    ----------
    name : str
        Their source, for errors.
    columns : Mapping of str to ndarray or Series
        (N,) numbers or text.
    target : ndarray or Series or None
        Class or number of each row, (N,).
    splits : sequence of (ndarray, ndarray)
        Row numbers, from 0, to train on and to test on.
    classes : sequence of str
        The classes in their order, where the source gives one.

    Raises
    ------
    SettingError
        There is no column or no row, or a split is none.
    """
    if not columns or not len(next(iter(columns.values()))):
        rows = len(next(iter(columns.values()), () if target is None else target))
        raise SettingError(name, f"{rows} rows, {len(columns)} features", "at least one of each")
    held = {key: column(cells) for key, cells in columns.items()}
    aim = None if target is None else column(target, named=True)
    whole = Frame(name, held, aim, classes=tuple(classes))
    drawn = (checked_split(name, i, whole.count, *rows) for i, rows in enumerate(splits))
    return replace(whole, splits=tuple(drawn))


def frame_of(
    name: str,
    held: DataFrame,
    target: str,
    splits: Splits = (),
    classes: Sequence[str] = (),
    id: str = "",
) -> Frame:
    """Return the columns and targets in a DataFrame.

    Parameters
    ----------
    name : str
        Its source, for errors.
    held : DataFrame
        Its rows; the index is no column.
    target : str
        The column that is predicted; it need not be there.
    splits : sequence of (ndarray, ndarray)
        Row numbers, from 0, to train on and to test on.
    classes : sequence of str
        The classes in their order, where the source gives one; else a categorical target does.
    id : str
        The column that names the rows; it need not be there.

    Raises
    ------
    SettingError
        Two columns have one name, or none.
    """
    names = [plain(column) for column in held.columns]
    if "" in names:
        allowed = "a name in the header; leave a column of row numbers out"
        raise CellError(f"{name}: column {names.index('') + 1}", "", allowed)
    if broken := [held for held in names if SURROGATE.search(held)]:
        where = f"{name}: column {names.index(broken[0]) + 1}"
        raise CellError(where, shown(broken[0]), "a name without half a character")
    if len(set(names)) < len(names):
        twice = Counter(names).most_common(1)[0][0]
        raise CellError(f"{name}: column {twice!r}", "twice", "another name for each column")
    columns = {column: held.iloc[:, i] for i, column in enumerate(names)}
    aim, ids = columns.pop(plain(target), None), columns.pop(plain(id), None)
    if aim is not None and not classes and hasattr(aim, "cat"):
        used = set(aim.dropna().tolist())
        classes = [name_of(category) for category in aim.cat.categories if category in used]
    found = frame(name, columns, aim, splits, classes)
    return found if ids is None else replace(found, ids=_written(ids))


def _written(cells: Any) -> np.ndarray:
    """Return cells as text, (N,): ``TRUE`` stays as it is; whole floats lose their point."""
    absent, texts = cells.isna().to_numpy(), cells.astype(object).tolist()
    names = [plain(text) if isinstance(text, str) else text_of(text) for text in texts]
    return np.where(absent, "", np.array(names, dtype=object))
