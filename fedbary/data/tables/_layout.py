"""From a table's cells to numbers: the layout that all sites share, and rows coded by it."""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedbary.data.examples import Examples
from fedbary.data.frame import (
    MAX_LEVELS,
    MISSING,
    TARGET,
    Column,
    Frame,
    disguised,
    frame_of,
    is_code,
    name_of,
    numbers_of_words,
    order_of,
    text_of,
    unit_of,
)
from fedbary.data.grouping import group_numbers
from fedbary.data.layout import Layout
from fedbary.data.sentinels import sentinels
from fedbary.errors import CellError, SettingError
from fedbary.texts import alike, listed

if TYPE_CHECKING:
    from pandas import DataFrame

MAX_CLASSES = 100

MANY = 50
"""Number of rows above which consecutive numbers cannot be chance."""

FEW = 5
"""Number of levels that is allowed however few rows there are."""


_ALSO = {"True": "1", "False": "0", "1": "True", "0": "False"}
"""Names that stand for each other where only one of them is known."""


def layout_of(
    frame: Frame,
    classes: Sequence[str] = (),
    missing: str = "refuse",
    missing_words: tuple[str, ...] = (),
) -> Layout:
    """Return the layout of a classification's frame: levels in their order, and the classes.

    Parameters
    ----------
    frame : Frame
        The server's data; its rows decide which levels there are.
    classes : sequence of str
        The classes in their order; by default as the source orders them, else whole numbers by
        size, text in alphabetical order.
    missing, missing_words
        Treatment of empty cells, and words that stand for one; the frame's are empty already.

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
    marked = indicated(frame, dict(columns), missing)
    return Layout(columns, named, missing, marked, missing_words)


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
        if numbers_rows(column, held.numbers):
            said = f"another number in each row is taken as a feature; id={column} leaves it out"
            warnings.warn(f"{name}: {where}: {said}", stacklevel=2)
        return ()
    assert held.texts is not None
    present = held.texts[~held.missing]
    levels = order_of(set(present.tolist()))
    if instead := disguised(levels):
        raise CellError(f"{name}: row 1, {where}", held.cell(0), f"{instead}, in the whole column")
    words = [level for level in levels if not is_number(level)]
    if len(words) < len(levels) and words and not any(map(is_code, levels)):
        todo = "a finite number, as other rows of this column hold; or text that is no number "
        todo += f"in all; or missing_words={listed(words[:3])} if that stands for a missing value"
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


def numbers_rows(column: str, numbers: np.ndarray) -> bool:
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
    if all(map(is_number, found)):
        if fractions := [name for name in found if not float(name).is_integer()]:
            raise CellError(f"{frame.name}: {TARGET}", fractions[0], number)
    known = frame.classes if set(found) <= set(frame.classes) else tuple(found)
    if not 2 <= len(known) <= MAX_CLASSES:
        allowed = f"2 to {MAX_CLASSES} classes, {number}"
        said = f"{len(known)} different values" if len(found) > 1 else f"{found[0]} in every row"
        raise CellError(f"{frame.name}: {TARGET}", said, allowed)
    _warn_alike(frame.name, TARGET, known)
    return known


def is_number(name: str) -> bool:
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
        The column that names a row, which is not used; empty for none.
    missing, missing_words
        Treatment of empty cells, and words that stand for one, see `Layout`.
    group : str
        The column that names a row's group, which is not used; empty for none, or for that of `id`
        if a name stands in several rows.
    """

    columns: tuple[str, ...] = ()
    leave_out: tuple[str, ...] = ()
    id: str = ""
    missing: str = "refuse"
    missing_words: tuple[str, ...] = ()
    group: str = ""


def grouped(frame: Frame, choice: Choice) -> Frame:
    """Return a frame whose rows have groups, if a column names them.

    Raises
    ------
    SettingError
        If there is no such column, or a cell of it is empty.
    """
    name = choice.group or choice.id
    if (held := frame.columns.get(name)) is None:
        if choice.group:
            allowed = perhaps(name, frame.name, list(frame.columns))
            raise CellError("group", name, allowed, "a table without the column of groups")
        return frame
    where, known = f"group, column {name!r}", held.rows(~held.missing).names
    if not choice.group and len(set(known)) == len(known):
        return frame
    require_plain(frame.name, where, held)
    if choice.group and held.missing.any():  # rows without an id are a group
        row = int(held.missing.argmax()) + 1
        allowed = "a name for each row's group: rows without one may belong together"
        raise CellError(f"{frame.name}: row {row}, {where}", "", allowed, "a row without a group")
    return replace(frame, groups=group_numbers(held.names))


def chosen(frame: Frame, choice: Choice) -> Frame:
    """Return a frame with the columns that are used.

    Raises
    ------
    SettingError
        A column that is named is not there, or none is left.
    """
    named = [("columns", name) for name in choice.columns]
    named += [("leave_out", name) for name in choice.leave_out]
    named += [(word, name) for word in ("id", "group") if (name := getattr(choice, word))]
    for setting, name in named:
        if name not in frame.columns:
            raise CellError(setting, name, perhaps(name, frame.name, list(frame.columns)))
    left = {*choice.leave_out, choice.id, choice.group}
    wanted = [name for name in choice.columns or frame.columns if name not in left]
    if not wanted:
        raise CellError("leave_out", ",".join(left), "at least one column that is used")
    return replace(frame, columns={name: frame.columns[name] for name in wanted})


def perhaps(name: str, source: str, columns: Sequence[str]) -> str:
    """Say which columns there are, and which of them may have been meant."""
    folded = {column.casefold(): column for column in columns}
    close = difflib.get_close_matches(name.casefold(), folded, n=1)
    meant = f"; perhaps {listed([folded[close[0]]])}" if close else ""
    return f"a column of {source}: {listed(columns)}{meant}"


def number_layout(
    held: Frame, missing: str = "refuse", missing_words: tuple[str, ...] = ()
) -> Layout:
    """Return the layout of a regression's frame; constant columns are left out with a warning.

    Raises
    ------
    SettingError
        As in `columns_of` and `numbers_of`; or the target or every feature is constant, or there is
        one row.
    """
    targets = numbers_of(held)
    if held.count < 2:
        features = f"{held.count} rows, {len(held.columns)} features"
        raise SettingError(held.name, features, "at least 2 and 1")
    columns = dict(columns_of(held, missing))
    constant = [name for name in columns if _is_constant(held.columns[name])]
    if np.ptp(targets) == 0 or len(constant) == len(columns):
        what = "every feature" if len(constant) == len(columns) else "the target"
        allowed = "at least one feature and a target that vary"
        raise SettingError(held.name, f"{what} is constant", allowed)
    if constant:
        said = f"{held.name}: constant features are left out: {', '.join(constant)}"
        warnings.warn(said, stacklevel=2)
    varying = {name: levels for name, levels in columns.items() if name not in constant}
    marked = indicated(held, varying, missing)
    return Layout(tuple(varying.items()), (), missing, marked, missing_words)


def _is_constant(column: Column) -> bool:
    held = column.texts if column.is_text and column.texts is not None else column.numbers
    return len(set(held[~column.missing].tolist())) == 1


def encode(frame: Frame, layout: Layout) -> Examples:
    """Code rows to train on by a layout; those with a level unknown to it are left out, and said.

    Raises
    ------
    SettingError
        As in `coded`; or there is no other row.
    """
    found = coded(frame, layout)
    if found.unknown:
        _warn_unknown(frame, layout, found.unknown)
    _warn_of_sentinels(frame, layout)
    return found.known()


def _warn_of_sentinels(frame: Frame, layout: Layout) -> None:
    """Say which numbers repeat far from all others in a column, as codes of missing values do."""
    held = {
        f"feature {name!r}": frame.columns[name] for name, levels in layout.columns if not levels
    }
    if not layout.classes and frame.target is not None:
        held[TARGET] = frame.target
    for where, cells in held.items():
        found = sentinels(cells.numbers)
        said = [f"{text_of(number)} stands in {count}" for number, count in found.items()]
        if said:
            words = f"missing_words={','.join(map(text_of, found))} takes such cells as empty"
            told = (
                f"{' and '.join(said)} of {frame.count} rows, far from all other numbers; {words}"
            )
            warnings.warn(f"{frame.name}: {where}: {told}", stacklevel=2)


def coded(frame: Frame, layout: Layout) -> Examples:
    """Code a frame's rows by a layout, with a class or a number each where it has a target.

    Raises
    ------
    SettingError
        As in `features_of`, and in `labels_of` or `numbers_of`.
    """
    x, unknown = features_of(frame, layout)
    places = np.arange(frame.count) if frame.places is None else frame.places
    y = None
    if frame.target is not None:
        y = torch.from_numpy(labels_of(frame, layout) if layout.classes else numbers_of(frame))
    return Examples(
        torch.from_numpy(x),
        y,
        frame.name,
        layout,
        frame.splits,
        unused=layout.unused(frame.columns),
        unknown=tuple(np.flatnonzero(unknown).tolist()),
        groups=frame.groups,
        places=torch.from_numpy(places),
    )


def features_of(frame: Frame, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    """Code a frame's rows: numbers as they are, a level as 1 among 0s.

    Columns are found by name; those that the layout does not have are left out.

    Returns
    -------
    features : ndarray
        (N, D) float64; NaN where a value is missing and the layout does not refuse that.
    unknown : ndarray
        (N,) bool: rows with a level that the layout does not know, of which that column is all 0.

    Raises
    ------
    SettingError
        A column is missing, or a cell is missing or no number (names row and column).
    """
    held = frame.columns
    if missing := [column for column, _ in layout.columns if column not in held]:
        allowed = f"the federation's columns; missing: {', '.join(missing)}"
        told = f"{len(held)} columns; missing: {', '.join(missing)}"
        raise CellError(f"{frame.name}: columns", ", ".join(held), allowed, told)
    unknown = np.zeros(frame.count, dtype=bool)
    parts = []
    for column, levels in layout.columns:
        where, cells = f"feature {column!r}", held[column]
        require_plain(frame.name, where, cells)
        if layout.missing == "refuse":
            require(frame.name, where, cells, cells.missing, "")
        if levels:
            places = places_of(cells, levels)
            one_hot = (places[:, None] == np.arange(len(levels))).astype(np.float64)
            one_hot[cells.missing] = np.nan
            parts.append(one_hot)
            unknown |= (places < 0) & ~cells.missing
        else:
            bad = ~np.isfinite(cells.numbers) & ~cells.missing
            allowed = (
                "a finite number, as the server's data hold there, or a word of missing_words="
            )
            require(frame.name, where, cells, bad, allowed)
            parts.append(cells.numbers[:, None])
    parts += [held[column].missing[:, None].astype(np.float64) for column in layout.indicated]
    return np.concatenate(parts, axis=1), unknown


def coded_rows(held: DataFrame, target: str, layout: Layout) -> Tensor:
    """Return the features (N, D) of the rows of a DataFrame, whose columns are found by name.

    Raises
    ------
    SettingError
        If it is none, or lacks a column; if a cell is no number, or a level that is not known.
    """
    import pandas

    if not isinstance(held, pandas.DataFrame):
        names = ", ".join(name for name, _ in layout.columns)
        allowed = f"a tensor (N, {len(layout.features)}), or a DataFrame with the columns {names}"
        raise SettingError("x", f"a {type(held).__name__}", allowed)
    rows = frame_of("x", held, target).without(layout.missing_words)
    x, unknown = features_of(rows, layout)
    if unknown.any():
        require_known(rows, layout)
    return torch.from_numpy(x)


def require_known(rows: Frame, layout: Layout) -> None:
    """Raise a SettingError at the first cell with a level that the layout does not have."""
    for column, levels, strange in _strange(rows, layout):
        held = rows.columns[column]
        require(rows.name, f"feature {column!r}", held, strange, ", ".join(levels))


def _strange(frame: Frame, layout: Layout) -> Iterator[tuple[str, tuple[str, ...], np.ndarray]]:
    """Yield each column of levels, these, and which cells hold another, (N,) bool."""
    for column, levels in layout.columns:
        held = frame.columns[column]
        if levels:
            yield column, levels, (places_of(held, levels) < 0) & ~held.missing


def require_rows(x: Tensor, layout: Layout) -> Tensor:
    """Return the features (N, D) of rows, if a layout can have coded them.

    Raises
    ------
    SettingError
        If the width is another, a number is not finite, or the features of a column with levels
        are not a 1 among 0s.
    """
    x, features = emptied(x, layout), layout.features
    if x.ndim != 2 or x.shape[1] != len(features):
        allowed = f"a tensor (N, {len(features)}) of {', '.join(features)}"
        raise SettingError("x", f"a tensor {tuple(x.shape)}", allowed)
    absent = x.isnan() if layout.missing != "refuse" else torch.zeros_like(x, dtype=torch.bool)
    if (bad := (~x.isfinite() & ~absent).nonzero()).numel():
        row, column = bad[0].tolist()
        where = f"x: row {row + 1}: {features[column]}"
        raise SettingError(where, float(x[row, column]), "a finite number")
    start = 0
    for column, levels in layout.columns:
        part = x[:, start : start + len(levels)]
        is_level = ((part >= 0) & (part <= 1)).all(1) & ((part.sum(1) - 1).abs() < 1e-6)
        if layout.missing == "refuse":  # else filled cells hold shares
            is_level &= (part == part.round()).all(1)
        if levels and (odd := (~is_level & ~part.isnan().all(1)).nonzero()).numel():
            row = int(odd[0])
            allowed = f"a 1 among 0s for {', '.join(levels)}"
            raise SettingError(f"x: row {row + 1}: {column}", part[row].tolist(), allowed)
        start += max(1, len(levels))
    return x


def emptied(x: Tensor, layout: Layout) -> Tensor:
    """Return rows (N, D) with NaN in place of the numbers that stand for a missing value.

    The features that mark missing cells are then 1, whatever they were.
    """
    features, marks = layout.features, len(layout.indicated)
    if x.shape[-1] != len(features):
        return x
    numbers = [name for name, levels in layout.columns if not levels]
    place = torch.tensor([name in numbers for name in features])
    for number in sorted(numbers_of_words(layout.missing_words)):
        x = x.where(~((x == number) & place.to(x.device)), torch.nan)
    widths = accumulate((max(1, len(levels)) for _, levels in layout.columns), initial=0)
    first = dict(zip(dict(layout.columns), widths, strict=False))
    empty = x[..., [first[name] for name in layout.indicated]].isnan().to(x.dtype)
    plain = len(features) - marks
    return torch.cat([x[..., :plain], x[..., plain:].maximum(empty)], -1) if marks else x


def places_of(held: Column, names: Sequence[str]) -> np.ndarray:
    """Return the place among `names` of each cell, (N,) int64; −1 where it is none of them."""
    if held.texts is None:
        return np.full(len(held.missing), -1)
    places = {text: place for place, text in enumerate(names)}
    for text, other in _ALSO.items():
        if text not in places and other in names:
            places[text] = places[other]
    return np.array([places.get(text, -1) for text in held.texts.tolist()], dtype=np.int64)


def _warn_unknown(frame: Frame, layout: Layout, unknown: Sequence[int]) -> None:
    """Say in which columns the unknown levels lie."""
    found = []
    for column, levels, strange in _strange(frame, layout):
        if strange.all():
            where, held = f"feature {column!r}", frame.columns[column]
            allowed = f"{', '.join(levels)}, which the server knows"
            require(frame.name, where, held, strange, allowed)
        if strange.any():
            found.append(f"{column} ({int(strange.sum())})")
    said = f"{len(unknown)} of {frame.count} rows hold a level that the federation does not "
    said += f"know, and are left out: {', '.join(found)}"
    if len(unknown) == frame.count:
        raise CellError(frame.name, said, "a row with levels that the server knows")
    warnings.warn(f"{frame.name}: {said}", stacklevel=2)


def labels_of(frame: Frame, layout: Layout) -> np.ndarray:
    """Return the place of each row's class in a layout, (N,) int64.

    Raises
    ------
    SettingError
        A class is missing or none of the layout's.
    """
    assert frame.target is not None
    require_plain(frame.name, TARGET, frame.target)
    labels = places_of(frame.target, layout.classes)
    require(frame.name, TARGET, frame.target, frame.target.missing, "")
    allowed = f"{listed(layout.classes)}, which the server knows"
    require(frame.name, TARGET, frame.target, labels < 0, allowed)
    return labels


def numbers_of(frame: Frame) -> np.ndarray:
    """Return each row's target as a number, (N,) float64.

    Raises
    ------
    SettingError
        A number is missing or not finite, or numbers are too close for double precision.
    """
    assert frame.target is not None
    target, values = frame.target, frame.target.numbers
    require_plain(frame.name, TARGET, target)
    if not np.isfinite(values).any() and not target.missing.all():
        assert target.texts is not None
        allowed = disguised(target.texts) or "a column of numbers; task=tables predicts classes"
        raise CellError(f"{frame.name}: {TARGET}", target.cell(0), allowed)
    require(frame.name, TARGET, target, ~np.isfinite(values), "a finite number")
    if np.spacing(np.abs(values).max()) > np.ptp(values) / 1000 > 0:
        allowed = "numbers that double precision tells apart: subtract a constant"
        raise CellError(f"{frame.name}: {TARGET}", target.cell(0), allowed)
    return values.copy()  # a frame's arrays may be read-only
