"""Layout that all sites of a run on tables share: the columns, their levels, the classes."""

from __future__ import annotations

import difflib
import json
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedbary.data.frame import (
    MAX_LEVELS,
    MISSING,
    TARGET,
    Column,
    Frame,
    disguised,
    is_code,
    name_of,
    order_of,
    plain,
    unit_of,
)
from fedbary.errors import CellError
from fedbary.texts import alike

MAX_CLASSES = 100

MANY = 50
"""Number of rows above which consecutive numbers cannot be chance."""

FEW = 5
"""Number of levels that is allowed however few rows there are."""


@dataclass(frozen=True)
class Layout:
    """Columns in the order that the network sees them, and the classes; sent with every message.

    Parameters
    ----------
    columns : tuple of (str, tuple of str)
        Name and levels of each column: the texts that it may hold, or none for numbers. A column
        of L levels is L features, 1 for the row's level and 0 for the others.
    classes : tuple of str
        Name of each class, in the order of the labels 0, 1, … Of two the second is the positive.
        Empty where a number is predicted.
    missing : str
        Treatment of empty cells: ``refuse``; or ``mean``, ``median``, ``indicator``, which make
        them NaN for the standardisation to fill.
    indicated : tuple of str
        Columns with a further feature, after all others, that marks their missing cells.
    """

    columns: tuple[tuple[str, tuple[str, ...]], ...]
    classes: tuple[str, ...]
    missing: str = "refuse"
    indicated: tuple[str, ...] = ()

    @property
    def features(self) -> tuple[str, ...]:
        """Name of each feature: the column's, or ``column=level``."""
        held = [
            f"{column}={level}" if level is not None else column
            for column, levels in self.columns
            for level in levels or (None,)
        ]
        return (*held, *(f"{column} missing" for column in self.indicated))

    def unused(self, columns: Iterable[str]) -> tuple[str, ...]:
        """Return those of some columns that the layout does not have."""
        known = {name for name, _ in self.columns}
        return tuple(name for name in columns if name not in known)

    def config(self) -> dict[str, Any]:
        """Return what a ConfigRecord holds of it."""
        filled = {"missing": self.missing, "indicated": list(self.indicated)}
        return {
            **(filled if self.missing != "refuse" else {}),
            "columns": [column for column, _ in self.columns],
            "levels": [json.dumps(levels) for _, levels in self.columns],
            "class-names": list(self.classes),
        }

    @staticmethod
    def from_config(config: Mapping[str, Any]) -> Layout:
        """Return the layout that a ConfigRecord describes; ``features`` alone are numbers."""
        if "features" in config:  # of a regression before it took levels
            return Layout(tuple((str(name), ()) for name in config["features"]), ())
        pairs = zip(config["columns"], config["levels"], strict=True)
        columns = tuple((str(name), tuple(map(str, json.loads(text)))) for name, text in pairs)
        classes, shown = (config.get(key, ()) for key in ("class-names", "indicated"))
        missing = str(config.get("missing", "refuse"))
        return Layout(columns, tuple(map(str, classes)), missing, tuple(map(str, shown)))


def layout_of(frame: Frame, classes: Sequence[str] = (), missing: str = "refuse") -> Layout:
    """Return the layout of a classification's frame: levels in their order, and the classes.

    Parameters
    ----------
    frame : Frame
        The server's data; its rows decide which levels there are.
    classes : sequence of str
        The classes in their order; by default as the source orders them, else whole numbers by
        size, text in alphabetical order.
    missing : str
        Treatment of empty cells.

    Raises
    ------
    SettingError
        A column mixes numbers and text, holds numbers written as text, or has too many levels; the
        error names row (from 1) and column. Or there are fewer than 2 classes, more than
        `MAX_CLASSES`, or classes with a fraction.
    """
    columns = columns_of(frame, missing)
    named = tuple(map(name_of, classes)) or _classes(frame)
    if len(set(named)) < len(named):
        raise CellError("classes", ",".join(classes), "different names")
    return Layout(columns, named, missing, indicated(frame, dict(columns), missing))


def columns_of(frame: Frame, missing: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return name and levels of each of a frame's columns; a SettingError as in `layout_of`."""
    refused = missing == "refuse"
    return tuple((name, _levels(frame.name, name, v, refused)) for name, v in frame.columns.items())


def indicated(frame: Frame, columns: Iterable[str], missing: str) -> tuple[str, ...]:
    """Return the columns that have a feature for their missing cells."""
    if missing != "indicator":
        return ()
    return tuple(name for name in columns if frame.columns[name].missing.any())


def require(name: str, column: str, held: Column, bad: np.ndarray, allowed: str) -> None:
    """Raise the error of the first of the rows (N,) that are bad, if there is one.

    A missing value is told as what it is.
    """
    for row in np.flatnonzero(bad)[:1].tolist():
        cell = held.cell(row)
        if held.missing[row]:
            allowed = "a value: none is filled in; fill the cell, or leave the row"
            if column != TARGET:
                allowed += " or the column (leave_out=) out, or see missing="
            if isinstance(cell, str) and cell and cell.casefold() in MISSING:
                allowed += f"; if {cell} is a word here, write another that means the same"
        raise CellError(f"{name}: row {row + 1}, {column}", cell, allowed)


def require_plain(name: str, column: str, held: Column) -> None:
    """Raise the error of a column that holds neither numbers nor text."""
    if held.unfit:
        raise CellError(f"{name}: {column}", held.unfit, "numbers or text")


def _levels(name: str, column: str, held: Column, refused: bool) -> tuple[str, ...]:
    where = f"feature {column!r}"
    require_plain(name, where, held)
    if refused:
        require(name, where, held, held.missing, "")
    if held.missing.all():
        raise CellError(f"{name}: {where}", "no value in any row", "a value, or leave_out=")
    if not held.is_text:
        bad = ~np.isfinite(held.numbers) & ~held.missing
        require(name, where, held, bad, "a finite number")
        if _numbers_rows(column, held.numbers):
            said = f"another number in each row is taken as a feature; id={column} leaves it out"
            warnings.warn(f"{name}: {where}: {said}", stacklevel=2)
        return ()
    assert held.texts is not None
    present = held.texts[~held.missing]
    levels = order_of(set(present.tolist()))
    if instead := disguised(levels):
        raise CellError(f"{name}: row 1, {where}", held.cell(0), f"{instead}, in the whole column")
    words = [level for level in levels if not _is_number(level)]
    if len(words) < len(levels) and words and not any(map(is_code, levels)):
        todo = "a finite number, as other rows of this column hold; or text that is no number "
        todo += "in all"
        require(name, where, held, np.isin(held.texts, words), todo)
    if len(levels) > MAX_LEVELS or len(levels) > max(FEW, len(present) / 2):
        allowed = f"at most {MAX_LEVELS}, and fewer than half the {len(present)} rows; "
        allowed += (
            f"leave_out={column} for notes, id={column} if it names the rows, or fewer levels"
        )
        raise CellError(f"{name}: {where}", f"{len(levels)} texts", allowed)
    if unit := unit_of(levels):
        said = f"numbers with {unit!r} are taken as {len(levels)} levels, in no order"
        warnings.warn(f"{name}: {where}: {said}", stacklevel=2)
    _warn_alike(name, where, levels)
    return tuple(levels)


def _numbers_rows(column: str, numbers: np.ndarray) -> bool:
    """Return whether a column is named like a row number and holds distinct whole numbers.

    Many consecutive numbers count as row numbers, whatever the column's name.
    """
    called = re.search(r"(?i)(^|[_ .-])(id|index|nr|no|row|number|unnamed: 0)$", column)
    whole = bool((numbers == np.round(numbers)).all())
    if not whole or len(np.unique(numbers)) < len(numbers) or len(numbers) <= FEW:
        return False
    return called is not None or len(numbers) >= MANY and np.ptp(numbers) == len(numbers) - 1


def _warn_alike(name: str, where: str, names: Sequence[str]) -> None:
    for one, other in alike(names):
        said = f"{one!r} and {other!r} differ in case or blanks alone, and are told apart"
        warnings.warn(f"{name}: {where}: {said}", stacklevel=2)


def _classes(frame: Frame) -> tuple[str, ...]:
    held = frame.target
    assert held is not None and held.texts is not None
    require_plain(frame.name, TARGET, held)
    require(frame.name, TARGET, held, held.missing, "")
    found = order_of(set(held.texts.tolist()))
    number = "whole numbers or text; task=regression predicts a number"
    if len(found) > FEW and (instead := disguised(found)):
        raise CellError(f"{frame.name}: {TARGET}", found[0], f"{instead}; or few classes")
    if all(map(_is_number, found)):
        if fractions := [name for name in found if not float(name).is_integer()]:
            raise CellError(f"{frame.name}: {TARGET}", fractions[0], number)
    known = frame.classes if set(found) <= set(frame.classes) else tuple(found)
    if not 2 <= len(known) <= MAX_CLASSES:
        allowed = f"2 to {MAX_CLASSES} classes, {number}"
        said = f"{len(known)} different values" if len(found) > 1 else f"{found[0]} in every row"
        raise CellError(f"{frame.name}: {TARGET}", said, allowed)
    _warn_alike(frame.name, TARGET, known)
    return known


def _is_number(name: str) -> bool:
    return re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?inf(inity)?", name) is not None


@dataclass(frozen=True)
class Choice:
    """Columns of a source that are used as inputs.

    Parameters
    ----------
    columns : tuple of str
        The columns that are used; empty for all.
    leave_out : tuple of str
        Those that are not used.
    id : str
        The column that names a row, which is not used; it need not be there.
    missing : str
        Treatment of empty cells, see `Layout`.
    """

    columns: tuple[str, ...] = ()
    leave_out: tuple[str, ...] = ()
    id: str = ""
    missing: str = "refuse"


def names_in(text: str, none: str) -> tuple[str, ...]:
    """Return the names in a text, with commas between; none of the word that says so."""
    return () if text == none else tuple(plain(name) for name in text.split(","))


def chosen(frame: Frame, choice: Choice) -> Frame:
    """Return a frame with the columns that are used.

    Raises
    ------
    SettingError
        A column that is named is not there, or none is left.
    """
    for setting in ("columns", "leave_out"):
        for name in getattr(choice, setting):
            if name not in frame.columns:
                raise CellError(setting, name, perhaps(name, frame.name, list(frame.columns)))
    left = {*choice.leave_out, choice.id}
    wanted = [name for name in choice.columns or frame.columns if name not in left]
    if not wanted:
        raise CellError("leave_out", ",".join(left), "at least one column that is used")
    return replace(frame, columns={name: frame.columns[name] for name in wanted})


def perhaps(name: str, source: str, columns: Sequence[str]) -> str:
    """Say which columns there are, and which of them may have been meant."""
    folded = {column.casefold(): column for column in columns}
    close = difflib.get_close_matches(name.casefold(), folded, n=1)
    meant = f"; perhaps {folded[close[0]]}" if close else ""
    return f"a column of {source}: {', '.join(columns)}{meant}"
