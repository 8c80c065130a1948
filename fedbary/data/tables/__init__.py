"""Tables as tensors: a set that ships with the package, or a user's own file or folder.

A set by name is one module of this package whose name has no leading underscore. It has
``read(data_dir)`` for regression or ``read_labelled(data_dir)`` for classification. Both return a
`Frame` of `fedbary.data.frame`. There is no other registration.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Hashable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedbary.data.examples import Examples
from fedbary.data.formats.npz import PARTS
from fedbary.data.forms import (
    DataSource,
    Kept,
    elsewhere,
    endings,
    source_of,
    source_state,
    user_path,
)
from fedbary.data.frame import Frame, plain, text_of
from fedbary.data.grouping import group_numbers
from fedbary.data.layout import Layout
from fedbary.data.readers import Reading, reader
from fedbary.data.tables._layout import (
    Choice,
    chosen,
    coded,
    coded_rows,
    emptied,
    encode,
    grouped,
    labels_of,
    layout_of,
    number_layout,
    numbers_of,
    perhaps,
    require_rows,
)
from fedbary.errors import CellError, SettingError
from fedbary.parts.registry import modules

__all__ = [
    "Choice",
    "Layout",
    "coded_rows",
    "emptied",
    "load",
    "load_features",
    "load_frame",
    "load_labelled",
    "load_table",
    "names",
    "perhaps",
    "plain",
    "read_examples",
    "read_rows",
    "require_rows",
    "row_numbers",
]

ALL = Choice()

LEAVING = ("drop", "complete")
"""Treatments of missing values that leave rows out."""

_examples: Kept[Examples] = Kept()
_frames: Kept[Frame] = Kept()


def names(reader: str = "read") -> tuple[str, ...]:
    """Return the names of the sets that ship with the package, in alphabetical order.

    Parameters
    ----------
    reader : str
        The function that their modules have: ``read`` for regression, ``read_labelled`` for
        classification.
    """
    return modules("data/tables", reader)


def load(
    name: str,
    data_dir: Path | str,
    target: str = "",
    download: bool = False,
    layout: Layout | None = None,
    choice: Choice = ALL,
) -> Examples:
    """Return a regression set, read once, and anew where its files have changed.

    It is the same object for the same arguments until then. Treat it as read-only.

    Parameters
    ----------
    name : str
        One of `names`; a set of a library, see `fedbary.data.sources`; or
        ``package.module:function``, a function that returns a pandas DataFrame. Or the path of a
        file in one of `fedbary.data.formats`, or of a folder in the format of the UCI sets. A path
        is absolute, relative to the working directory, or else relative to ``data_dir``.
    data_dir : Path or str
        Folder of the data sets.
    target : str
        The column that is to be predicted; an ``.npz`` file and a UCI folder name their own.
    download : bool
        True: a set of Hugging Face may be fetched.
    layout : Layout
        The federation's, by which a site's own data are coded; by default that of the data.
    choice : Choice
        Columns that are used if no layout names them, and treatment of missing values.

    Raises
    ------
    SettingError
        There is no such set, or its content is invalid; the message says what and where.
    """
    reading = _reading(data_dir, target, download, choice.group)
    return _coded("read", name, reading, layout, choice, ())


def load_labelled(
    name: str,
    data_dir: Path | str,
    target: str = "",
    classes: tuple[str, ...] = (),
    layout: Layout | None = None,
    download: bool = False,
    choice: Choice = ALL,
) -> Examples:
    """Return a classification set, read once, and anew where its files have changed.

    Parameters
    ----------
    name, data_dir, target, download, layout, choice
        As for `load`, and so are the errors. The names are those of ``names("read_labelled")``; the
        target is the class.
    classes : tuple of str
        The classes in their order, the positive one last; by default those of the data, see
        `Layout`.
    """
    reading = _reading(data_dir, target, download, choice.group)
    return _coded("read_labelled", name, reading, layout, choice, classes)


def _reading(data_dir: Path | str, target: str, download: bool, group: str = "") -> Reading:
    return Reading(user_path(data_dir).absolute(), download, target, group=group)


def _coded(
    function: str,
    name: str,
    reading: Reading,
    layout: Layout | None,
    choice: Choice,
    classes: tuple[str, ...],
) -> Examples:
    def read() -> Examples:
        held = grouped(_with_target(_read(function, name, reading), reading.target), choice)
        if layout is not None:
            names = [name for name, _ in layout.columns]
            held, gone = _whole_rows(held.without(layout.missing_words), names, choice)
            return replace(encode(held, layout), notes=gone)
        names = [*chosen(held, choice).columns]
        held, gone = _whole_rows(held.without(choice.missing_words), names, choice)
        held = chosen(held, choice)
        how = "refuse" if choice.missing in LEAVING else choice.missing, choice.missing_words
        of = number_layout(held, *how) if function == "read" else layout_of(held, classes, *how)
        return replace(encode(held, of), notes=gone)

    key = function, name, reading, layout, choice, classes
    return _examples.get(key, _state(name, reading), read)


def _whole_rows(
    held: Frame, used: Collection[str], choice: Choice
) -> tuple[Frame, tuple[str, ...]]:
    """Return a frame without rows that lack a value, and a line on them, for `LEAVING`."""
    if choice.missing not in LEAVING:
        return held, ()
    if choice.missing == "complete":
        used = held.columns.keys() - choice.leave_out
    cells = [column.missing for name, column in held.columns.items() if name in used]
    gone = np.any([*cells, *([] if held.target is None else [held.target.missing])], axis=0)
    if gone.all():
        said = f"an empty cell in each of {len(gone)} rows"
        raise CellError(held.name, said, "a whole row; terms= uses fewer columns")
    if not gone.any():
        return held, ()
    return held.rows(~gone), (f"{gone.sum()} of {len(gone)} rows left out, with an empty cell",)


def load_frame(
    name: str, data_dir: Path | str, target: str, download: bool, choice: Choice = ALL
) -> Frame:
    """Return a table as its source has it, with a class for each row, and groups if some are named.

    Errors are as in `load`.
    """
    held = _read("read_labelled", name, _reading(data_dir, target, download))
    return grouped(_with_target(held, target), choice)


def load_table(
    name: str,
    data_dir: Path | str,
    target: str = "",
    download: bool = False,
    choice: Choice = ALL,
    function: str = "read_labelled",
) -> Frame:
    """Return a table as its source has it, whatever its cells; `load` names the errors.

    The target is apart, if it is named and there. The words of `choice` count as empty cells.
    """
    held = _read(function, name, _reading(data_dir, target, download))
    return held.without(choice.missing_words)


@lru_cache(maxsize=4)
def row_numbers(frame: Frame, choice: Choice, classes: bool) -> Examples:
    """Return the numbers of a table's rows as examples (N, 1), to be dealt as its rows are.

    Errors are as in `load_labelled`, or without `classes` as in `load`.
    """
    held = grouped(_with_target(frame, ""), choice)
    layout = layout_of(replace(held, columns={}), (), choice.missing) if classes else None
    y = numbers_of(held) if layout is None else labels_of(held, layout)
    x = torch.arange(held.count)[:, None]
    return Examples(x, torch.from_numpy(y), held.name, splits=held.splits, groups=held.groups)


def load_features(
    name: str, data_dir: Path | str, target: str, download: bool, layout: Layout
) -> Tensor:
    """Return a set's rows coded by a layout, (N, D) float64, without their classes.

    Rows with a level that the layout does not know are left out.

    Raises
    ------
    SettingError
        There is no such set, or a column of the layout is missing in it.
    """
    held = _read("read_labelled", name, _reading(data_dir, target, download))
    held = replace(held, target=None).without(layout.missing_words)
    return coded(held, layout).known().x


def read_rows(path: Path, target: str, layout: Layout, choice: Choice = ALL) -> Examples:
    """Read rows to predict, coded as the federation's, see `read_examples` and `coded`."""
    words = layout.missing_words
    return read_examples(path, target, choice, lambda held: coded(held.without(words), layout))


def read_examples(
    path: Path, target: str, choice: Choice, code: Callable[[Frame], Examples]
) -> Examples:
    """Read the rows of a file to predict, with targets where there are some.

    Columns are found by name, in any order; others are `unused`, except for those that the choice
    has for names and groups. They need not be there. A target that is empty in every row counts as
    absent.

    Raises
    ------
    SettingError
        If the file is of no known format, or as `code` does, which makes examples of a frame.
    """
    source = source_of(str(path))
    reading = Reading(Path(), target=target, id=choice.id, group=choice.group)
    held = _of_source(source, reading) if source.is_file else None
    if held is None:
        raise SettingError("data", str(path), "the path of a .csv, a .parquet or an .npz file")
    columns = {name: column.values for name, column in held.columns.items()}
    if held.ids is not None:
        columns[choice.id] = held.ids
    if held.target is not None:
        columns[target] = held.target.values
        held = held if not held.target.missing.all() else replace(held, target=None)
    found, names = code(held), columns.get(choice.group or choice.id, np.empty(0))
    known = [name for name in names.tolist() if name != ""]
    is_grouped = len(names) and (choice.group or len(set(known)) < len(known))
    groups = group_numbers(map(text_of, names.tolist())) if is_grouped else None
    unused = tuple(name for name in found.unused if name != choice.group)
    return replace(found, columns=columns, unused=unused, groups=groups)


def _of_source(source: DataSource, reading: Reading) -> Frame | None:
    """Return a source's frame; None if no source has that name."""
    read = reader(source, reading.data_dir, "table")
    if read is None or (source.is_file and not source.path(reading.data_dir).is_file()):
        return None
    held: Frame = read(source, reading)
    return held


def _state(name: str, reading: Reading) -> Hashable:
    return source_state(source_of(name), reading.data_dir)


def _read(function: str, name: str, reading: Reading) -> Frame:
    state = _state(name, reading)
    return _frames.get((function, name, reading), state, lambda: _anew(function, name, reading))


def _anew(function: str, name: str, reading: Reading) -> Frame:
    if name in names(function):
        module = importlib.import_module(f"{__name__}.{name}")
        shipped: Frame = getattr(module, function)(reading.data_dir)
        return shipped
    if (held := _of_source(source_of(name), reading)) is not None:
        return held
    allowed = f"{', '.join(names(function))}, the path of a {', '.join(endings('table'))} file or "
    raise SettingError("dataset", name, f"{allowed}a UCI folder, {elsewhere('table')}")


def _with_target(held: Frame, target: str) -> Frame:
    """Return a frame that has its target; the error names a column that may have been meant."""
    if held.target is None and source_of(held.name).kind == "npz":
        raise SettingError(held.name, "x", f"the arrays x, y or {', '.join(PARTS)}")
    if held.target is None:
        told = f"{len(held.columns)} columns; missing: {target}"
        allowed = perhaps(plain(target), held.name, list(held.columns))
        raise CellError("target", target, allowed, told)
    return held
