"""What all sites of a classification of tables agree on: the columns, their levels, the classes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedbary.data.tables._frame import TARGET, Frame
from fedbary.errors import CellError, SettingError

MAX_LEVELS = 50
"""Different texts of a column above which it is taken for names or notes and refused."""

MAX_CLASSES = 100


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
    """

    columns: tuple[tuple[str, tuple[str, ...]], ...]
    classes: tuple[str, ...]

    @property
    def features(self) -> tuple[str, ...]:
        """Name of each feature: the column's, or ``column=level``."""
        return tuple(
            f"{column}={level}" if level is not None else column
            for column, levels in self.columns
            for level in levels or (None,)
        )

    def config(self) -> dict[str, list[str]]:
        """Return what a ConfigRecord holds of it."""
        return {
            "columns": [column for column, _ in self.columns],
            "levels": [json.dumps(levels) for _, levels in self.columns],
            "class-names": list(self.classes),
        }

    @staticmethod
    def from_config(config: Mapping[str, Sequence[str]]) -> Layout:
        """Return the layout that a ConfigRecord describes."""
        pairs = zip(config["columns"], config["levels"], strict=True)
        columns = tuple((str(name), tuple(map(str, json.loads(text)))) for name, text in pairs)
        return Layout(columns, tuple(map(str, config["class-names"])))


def layout_of(frame: Frame, classes: Sequence[str] = ()) -> Layout:
    """Return the layout of a frame: levels in alphabetical order, and the classes.

    Parameters
    ----------
    frame : Frame
        The server's data; its rows decide which levels there are.
    classes : sequence of str
        The classes in their order; by default those of the frame, whole numbers by size, text in
        alphabetical order.

    Raises
    ------
    SettingError
        A column holds more than `MAX_LEVELS` texts, or there are fewer than 2 classes, or more
        than `MAX_CLASSES`, or they are numbers with a fraction.
    """
    columns = tuple((name, _levels(frame.name, name, v)) for name, v in frame.columns.items())
    return Layout(columns, tuple(classes) or _classes(frame))


def _levels(name: str, column: str, values: np.ndarray) -> tuple[str, ...]:
    if values.dtype != object:
        return ()
    levels = sorted(set(values.tolist()))
    if len(levels) > MAX_LEVELS:
        allowed = f"at most {MAX_LEVELS}; leave the column out, or code it as numbers"
        raise SettingError(f"{name}: feature {column!r}", f"{len(levels)} texts", allowed)
    return tuple(levels)


def _classes(frame: Frame) -> tuple[str, ...]:
    found = sorted(set(frame.target.tolist()))
    try:
        sizes = {name: float(name) for name in found}
    except ValueError:
        sizes = {}
    number = "whole numbers or text; task=regression predicts a number"
    if fractions := [name for name, size in sizes.items() if not size.is_integer()]:
        raise CellError(f"{frame.name}: {TARGET}", fractions[0], number)
    if not 2 <= len(found) <= MAX_CLASSES:
        allowed = f"2 to {MAX_CLASSES} classes, {number}"
        held = f"{len(found)} different values" if len(found) > 1 else f"{found[0]} in every row"
        raise CellError(f"{frame.name}: {TARGET}", held, allowed)
    return tuple(sorted(found, key=sizes.get) if sizes else found)  # type: ignore[arg-type]
