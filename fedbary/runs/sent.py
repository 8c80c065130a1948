"""A site's account over all runs: numbers sent, and answers with slopes or products of columns.

T gradients and Hessians of n rows with p columns are T (p + p (p + 1) / 2) equations for the
n (p + 1) numbers of the rows. Rows of a level have T (p + 1) equations of their own: the level's
slope, and its products with the other columns. So m rows of a level bear as many answers as their
share of the numbers that they hold allows: budget m.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

from fedbary.data.sites import Limits
from fedbary.errors import SettingError
from fedbary.runs.whole import write_whole

SENT = "sent.json"
"""The file in a site's state folder that says how much it has sent."""

AT_LEAST = 3.5
"""Answers that rows must bear to be in a run: sums and products before round 1, and two rounds."""


@dataclass(frozen=True)
class Sent:
    """A site's account over all runs.

    Attributes
    ----------
    numbers : int
        All its numbers.
    answers : float
        Its answers with slopes or products, in numbers for each number of a whole one.
    """

    numbers: int = 0
    answers: float = 0.0

    @classmethod
    def read(cls, folder: Path) -> Sent:
        """Return what a site has sent; a SettingError if the counter is damaged."""
        file = folder / SENT
        if not file.exists():
            return cls()
        try:
            found = json.loads(file.read_bytes())
            numbers, answers = found["numbers"], float(found["answers"])
            if type(numbers) is int and numbers >= 0 <= answers < math.inf:
                return cls(numbers, answers)
        except (ValueError, KeyError, TypeError):
            pass
        allowed = "the file as the site wrote it; without it the site would tell more"
        raise SettingError(str(file), "a damaged counter", allowed)

    def write(self, folder: Path) -> None:
        """Put the counter on disk."""
        write_whole(folder / SENT, json.dumps(asdict(self)).encode())

    def bearing(self, limits: Limits) -> float:
        """Return how many rows of a level bear `AT_LEAST` answers more; 0 without a budget."""
        return (self.answers + AT_LEAST) / limits.budget if limits.budget else 0.0

    def least(self, limits: Limits, uses: int = 1) -> int:
        """Return these rows, `min_cell` at least, if answers are used one or two at once."""
        return max(limits.min_cell, math.ceil(min(self.bearing(limits) / uses, 2**53)))


def whole_answer(columns: int) -> int:
    """Return the numbers of a whole answer: slopes and products of columns and an intercept."""
    return (columns + 1) * (columns + 4) // 2
