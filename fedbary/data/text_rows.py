"""A column of texts as tokens, with a class for each row where classes are known."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from fedbary.data.examples import Examples
from fedbary.data.frame import Frame, plain
from fedbary.data.images import Dataset
from fedbary.data.layout import Layout
from fedbary.data.tables import Choice, read_examples
from fedbary.data.tables._layout import labels_of, layout_of, perhaps, require_plain
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


def read_texts(frame: Frame, column: str, encode: Encode, classes: Sequence[str] = ()) -> Examples:
    """Return the texts of a column as tokens (N, L) int32, with a class each if there is a target.

    Control characters become spaces. A text longer than the tokens is cut. The notes quote no text.

    Parameters
    ----------
    frame, column, encode
        The table, the name of its column of texts, and what makes tokens of them.
    classes
        The classes in their order; by default as the source orders them.

    Raises
    ------
    SettingError
        If there is no such column, it holds no text, or every text is empty. No text stands in it.
        Or as in `layout_of` and `labels_of`.
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
    layout, y = Layout((), ()), None
    if frame.target is not None:
        layout = layout_of(replace(frame, columns={}), classes)
        y = torch.from_numpy(labels_of(frame, layout))
    return Examples(
        tokens,
        y,
        frame.name,
        layout,
        frame.splits,
        unused=tuple(name for name in frame.columns if name != plain(column)),
        notes=tuple(notes),
        unknown=tuple((~kept).nonzero()[:, 0].tolist()),
        lacking="an empty text",
        groups=frame.groups,
    )


def dataset_of(rows: Examples) -> Dataset:
    """Return the data set of texts and their classes; those that are empty are left out.

    The source prescribes the texts that test, or a tenth of each class does, always alike.

    Raises
    ------
    SettingError
        One of the two parts has no text.
    """
    known, name, layout = rows.known(), rows.source, rows.layout
    split = known.split(0)
    if not len(split.train) or not len(split.test):
        raise SettingError(name, f"{len(known.x)} texts", "texts to train on and to test on")
    x, (train, test) = known.x, (known.strata[side] for side in (split.train, split.test))
    counts = torch.bincount(train, minlength=len(layout.classes)).tolist()
    said = [f"{name}: {len(train)} texts to train on, {len(test)} to test on"]
    said += [f"{name}: {note}" for note in rows.notes]
    if none := [c for c, count in zip(layout.classes, counts, strict=True) if not count]:
        said.append(f"{name}: classes without a training example: {', '.join(none)}")
    parts = x[split.train], train, x[split.test], test
    groups = (None if known.groups is None else known.groups[p] for p in (split.train, split.test))
    return Dataset(name, *parts, layout.classes, False, tuple(said), *groups)


def text_examples(
    path: Path, column: str, target: str, choice: Choice, classes: Sequence[str], encode: Encode
) -> Examples:
    """Read texts to predict, with classes where there are some; empty ones go to a person.

    Raises
    ------
    SettingError
        As in `read_texts`; or a class is none of the model's.
    """
    found = read_examples(
        path, target, choice, lambda frame: read_texts(frame, column, encode, classes)
    )
    # texts that are empty go to a person, which is said there
    return replace(found, notes=found.notes[:-1] if found.unknown else found.notes)


def clean(text: str) -> str:
    """Return a text with spaces for control characters and halves of characters."""
    return CONTROL.sub(" ", text)
