"""Progress of the running round, in a file that its server writes and a command reads."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path


def duration(seconds: float) -> str:
    """Return seconds in their two largest units."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


PROGRESS_VARIABLE = "FEDBARY_PROGRESS"
"""Environment variable that names the file; without it nothing is written."""


@dataclass(frozen=True)
class Progress:
    """Number of a round's clients that have answered.

    Parameters
    ----------
    round, rounds : int
        The running round, from 1, and the run's.
    doing : str
        Their work: train or evaluate.
    answered, asked : int
        Clients.
    """

    round: int
    rounds: int
    doing: str
    answered: int
    asked: int

    @property
    def part(self) -> float:
        """The part of the run that is done, by rounds and the clients that have trained."""
        trained = self.answered / self.asked if self.doing == "train" else 1.0
        return (self.round - 1 + trained) / self.rounds

    def write(self, file: Path) -> None:
        """Write it in place of what the file held."""
        partial = file.with_name(f"{file.name}.partial")
        partial.write_text(json.dumps(asdict(self)), encoding="utf-8")
        os.replace(partial, file)

    @classmethod
    def read(cls, file: Path) -> Progress | None:
        """Return what a file holds, None before the first round."""
        try:
            return cls(**json.loads(file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
