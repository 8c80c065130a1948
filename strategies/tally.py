"""Count of a run's rounds, and its end if too few count."""

from __future__ import annotations

from collections.abc import Mapping
from logging import INFO, WARNING

import torch
from torch import Tensor

from fedbary.errors import RunError, SettingError

from .internals import log

_NUMBERS, _LAST = "tally", "tally.last"


class Tally:
    """Counts the rounds that gave an aggregate and the rounds that were skipped.

    Parameters
    ----------
    max_skipped : int or None
        Skipped rounds in a row after which no other begins. None: no limit.

    Raises
    ------
    SettingError
        If `max_skipped` is below 1.
    """

    def __init__(self, max_skipped: int | None) -> None:
        if max_skipped is not None and max_skipped < 1:
            raise SettingError("max_skipped", max_skipped, "1 or more, or None")
        self.max_skipped = max_skipped
        self.counted = 0
        self.skipped = 0
        self._in_a_row = 0
        self._last = ""

    def state_dict(self) -> dict[str, Tensor]:
        """Return the counts and the reason of the last skipped round, for a resume."""
        numbers = [self.counted, self.skipped, self._in_a_row]
        return {
            _NUMBERS: torch.tensor(numbers),
            _LAST: torch.tensor(list(self._last.encode()), dtype=torch.uint8),
        }

    def load_state_dict(self, state: Mapping[str, Tensor], completed_rounds: int) -> None:
        """Take a state of `state_dict`; without counts in it all earlier rounds count."""
        numbers = state.get(_NUMBERS, torch.tensor([completed_rounds, 0, 0]))
        self.counted, self.skipped, self._in_a_row = (int(number) for number in numbers)
        self._last = bytes(state.get(_LAST, torch.tensor([], dtype=torch.uint8)).tolist()).decode()

    def begin(self) -> None:
        """Raise a RunError if the last `max_skipped` rounds were skipped."""
        if self.max_skipped is not None and self._in_a_row >= self.max_skipped:
            mend = f"to go on, resume with a max_skipped above {self._in_a_row}"
            raise RunError(f"{self._in_a_row} rounds in a row were skipped; {self._last}; {mend}")

    def count(self) -> None:
        """Note a round that gave an aggregate."""
        self.counted += 1
        self._in_a_row = 0

    def skip(self, server_round: int, reason: str) -> None:
        """Note and log a skipped round."""
        self.skipped += 1
        self._in_a_row += 1
        self._last = f"round {server_round}: {reason}"
        log(WARNING, "aggregate_train: round %d is skipped: %s", server_round, reason)

    def undo(self, server_round: int) -> None:
        """Note and log that a round does not count any more, given the counts before it."""
        self.skipped += 1
        log(WARNING, "aggregate_train: round %d is undone", server_round)

    def end(self) -> None:
        """Log how many rounds counted; raise a RunError if none did."""
        rounds = self.counted + self.skipped
        if rounds and not self.counted:
            raise RunError(f"every round was skipped; {self._last}")
        last = f"; the last that was skipped: {self._last}" if self.skipped else ""
        level = WARNING if self.skipped else INFO
        log(level, "%d of %d rounds counted%s", self.counted, rounds, last)
