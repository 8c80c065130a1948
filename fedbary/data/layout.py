"""Layout that all sites of a run on tables share: the columns, their levels, the classes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


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
    missing_words : tuple of str
        Words that stand for a missing value, beside those that always do.
    """

    columns: tuple[tuple[str, tuple[str, ...]], ...]
    classes: tuple[str, ...]
    missing: str = "refuse"
    indicated: tuple[str, ...] = ()
    missing_words: tuple[str, ...] = ()

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
            **({"missing-words": list(self.missing_words)} if self.missing_words else {}),
            "columns": [column for column, _ in self.columns],
            "levels": [json.dumps(levels) for _, levels in self.columns],
            "class-names": list(self.classes),
        }

    @staticmethod
    def from_config(config: Mapping[str, Any]) -> Layout:
        """Return the layout that a ConfigRecord describes."""
        pairs = zip(config["columns"], config["levels"], strict=True)
        columns = tuple((str(name), tuple(map(str, json.loads(text)))) for name, text in pairs)
        classes, shown, words = (
            tuple(map(str, config.get(key, ())))
            for key in ("class-names", "indicated", "missing-words")
        )
        return Layout(columns, classes, str(config.get("missing", "refuse")), shown, words)
