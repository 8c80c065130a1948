"""A column of texts as tokens, with a class for each row where classes are known."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedbary.data.examples import Examples
from fedbary.data.frame import Frame, plain
from fedbary.data.images import Dataset
from fedbary.data.readers import parted
from fedbary.data.tables import Layout, read_file
from fedbary.data.tables._coded import labels_of
from fedbary.data.tables._layout import layout_of, perhaps, require_plain
from fedbary.errors import CellError, SettingError

CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]+")
"""Control characters, but for tabs and line ends; and halves of characters, which no UTF-8 has."""


class Encode(Protocol):
    """Takes texts to tokens (N, L), and says how many were cut and which rows hold nothing."""

    @property
    def longest(self) -> int:
        """L."""

    def __call__(self, texts: Sequence[str]) -> tuple[Tensor, int]:
        """Return the tokens, and how many texts were cut."""

    def empty(self, tokens: Tensor) -> Tensor:
        """Return which rows have no token of a text's own, (N,) bool."""

    def unknown(self, tokens: Tensor) -> Tensor:
        """Return which rows are mostly words that are unknown, (N,) bool."""


@dataclass(frozen=True, eq=False)
class TextRows:
    """N texts as tokens.

    Attributes
    ----------
    frame : Frame
        The table that they are from.
    tokens : Tensor
        (N, L) int32.
    kept : Tensor
        (N,) bool: True for texts that are not empty.
    notes : tuple of str
        Lines on texts that were cut or left out. They quote no text.
    """

    frame: Frame
    tokens: Tensor
    kept: Tensor
    notes: tuple[str, ...]

    def labels(self, layout: Layout) -> Tensor:
        """Return the class of each row, (N,) int64; a SettingError as in `labels_of`."""
        return torch.from_numpy(labels_of(self.frame, layout))


def read_texts(frame: Frame, column: str, encode: Encode) -> TextRows:
    """Return the texts of a column as tokens.

    Control characters become spaces. A text longer than the tokens is cut.

    Raises
    ------
    CellError
        If there is no such column, it holds no text, or every text is empty. No text stands in it.
    """
    held = frame.columns.get(plain(column))
    if held is None:
        told = f"{len(frame.columns)} columns; missing: {column}"
        raise CellError("text", column, perhaps(column, frame.name, list(frame.columns)), told)
    where = f"{frame.name}: text, column {column!r}"
    require_plain(frame.name, f"text, column {column!r}", held)
    if not (held.is_text or held.missing.all()) or held.texts is None:
        raise CellError(where, "numbers", "texts", "a column of texts that holds texts")
    tokens, cut = encode([clean(text) for text in held.texts.tolist()])
    kept = ~encode.empty(tokens)
    if not kept.any():
        raise CellError(where, "no text in any row", "some texts", "texts that are not all empty")
    notes = []
    if cut:
        notes.append(
            f"{cut} of {len(tokens)} texts are longer than {encode.longest} tokens and cut"
        )
    if unknown := int((encode.unknown(tokens) & kept).sum()):
        notes.append(f"{unknown} of {len(tokens)} texts are mostly words unknown to the backbone")
    if gone := int((~kept).sum()):
        first = int((~kept).nonzero()[0]) + 1
        notes.append(f"{gone} of {len(tokens)} texts are empty, the first in row {first}")
    return TextRows(frame, tokens, kept, tuple(notes))


def dataset_of(rows: TextRows, classes: Sequence[str] = ()) -> Dataset:
    """Return the data set of texts and their classes; those that are empty are left out.

    The source prescribes the texts that test, or a tenth of each class does, always alike.

    Parameters
    ----------
    rows
        The texts.
    classes
        The classes in their order; by default as the source orders them.

    Raises
    ------
    SettingError
        As in `layout_of` and `labels_of`; or one of the two parts has no text.
    """
    frame = rows.frame
    layout = layout_of(replace(frame, columns={}), classes)
    y, name = rows.labels(layout), frame.name
    if frame.splits:
        split = frame.splits[0]
        train, test = (part[rows.kept[part]] for part in (split.train, split.test))
        parts = rows.tokens[train], y[train], rows.tokens[test], y[test]
    else:
        drawn = parted(rows.tokens[rows.kept].numpy(), y[rows.kept].numpy())
        names = "x_train", "y_train", "x_test", "y_test"
        parts = tuple(torch.from_numpy(drawn[name]) for name in names)  # type: ignore[assignment]
    if not len(parts[1]) or not len(parts[3]):
        raise SettingError(
            name, f"{int(rows.kept.sum())} texts", "texts to train on and to test on"
        )
    counts = torch.bincount(parts[1], minlength=len(layout.classes)).tolist()
    said = [f"{name}: {len(parts[1])} texts to train on, {len(parts[3])} to test on"]
    said += [f"{name}: {note}" for note in rows.notes]
    if none := [c for c, count in zip(layout.classes, counts, strict=True) if not count]:
        said.append(f"{name}: classes without a training example: {', '.join(none)}")
    return Dataset(name, *parts, layout.classes, notes=tuple(said))


def text_examples(
    path: Path, column: str, target: str, id: str, classes: Sequence[str], encode: Encode
) -> Examples:
    """Read texts to predict, with classes where there are some; empty ones go to a person.

    Raises
    ------
    SettingError
        As in `read_texts`; or a class is none of the model's.
    """
    frame = read_file(path, target)
    if frame is None:
        raise SettingError("data", str(path), "the path of a .csv or a .parquet file")
    rows = read_texts(frame, column, encode)
    y = None
    if frame.target is not None and not frame.target.missing.all():
        y = rows.labels(Layout((), tuple(classes)))
    columns = {name: held.values for name, held in frame.columns.items()}
    if frame.target is not None:
        columns[target] = frame.target.values
    unused = tuple(name for name in frame.columns if name not in (plain(column), id))
    empty = np.flatnonzero(~rows.kept.numpy()).tolist()
    names = tuple(str(row) for row in range(1, frame.count + 1))
    said = rows.notes[:-1] if empty else rows.notes  # these go to a person, which is said there
    return Examples(
        names, rows.tokens, y, columns, unused,
        notes=said, unknown=tuple(empty), lacking="an empty text",
    )  # fmt: skip


def clean(text: str) -> str:
    """Return a text with spaces for control characters and halves of characters."""
    return CONTROL.sub(" ", text)
