"""Count of a run's rounds, and its end if too few count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from logging import INFO, WARNING

import torch
from torch import Tensor

from fedbary.errors import RunError, SettingError

from .internals import log

_NUMBERS, _LAST, _FARTHEST = "tally", "tally.last", "tally.farthest"

NAMED = 3
"""Number of a round's farthest replies that an error names."""


class Stalled(RunError):
    """No client could train after a round that counted, in as many rounds as may be skipped.

    Parameters
    ----------
    text : str
        The error's line.
    round : int
        The round that counted.
    """

    def __init__(self, text: str, round: int) -> None:
        super().__init__(text)
        self.round = round


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

    Attributes
    ----------
    counted, skipped : int
        Numbers of rounds.
    is_open : bool
        Whether a round has begun, and has neither counted nor been skipped.
    """

    def __init__(self, max_skipped: int | None) -> None:
        if max_skipped is not None and max_skipped < 1:
            raise SettingError("max_skipped", max_skipped, "1 or more, or None")
        self.max_skipped = max_skipped
        self.counted = 0
        self.skipped = 0
        self.is_open = False
        self._in_a_row = 0
        self._failed = 0
        self._counted_last = 0
        self._last = ""
        self._farthest = ""

    def state_dict(self) -> dict[str, Tensor]:
        """Return the counts and what an error would say, for a resume."""
        numbers = self.counted, self.skipped, self._in_a_row, self._failed, self._counted_last
        texts = {_LAST: self._last, _FARTHEST: self._farthest}
        state = {
            name: torch.tensor(list(text.encode()), dtype=torch.uint8)
            for name, text in texts.items()
        }
        return {_NUMBERS: torch.tensor(numbers), **state}

    def load_state_dict(self, state: Mapping[str, Tensor], completed_rounds: int) -> None:
        """Take a state of `state_dict`; without counts in it all earlier rounds count."""
        known = state.get(_NUMBERS, torch.tensor([completed_rounds, 0, 0, 0, 0]))
        self.counted, self.skipped, self._in_a_row, self._failed, self._counted_last = (
            known.tolist()
        )
        nothing = torch.tensor([], dtype=torch.uint8)
        self._last, self._farthest = (
            bytes(state.get(name, nothing).tolist()).decode() for name in (_LAST, _FARTHEST)
        )

    def begin(self) -> None:
        """Begin a round; raise a RunError if the last `max_skipped` rounds were skipped.

        It is a `Stalled` if in none of them a client could train.
        """
        self.is_open = True
        if self.max_skipped is None or self._in_a_row < self.max_skipped:
            return
        said = f"{self._in_a_row} rounds in a row were skipped; {self._last}"
        mend = f"with a max_skipped above {self._in_a_row}"
        if self._counted_last and self._failed == self._in_a_row:
            said += f"; {self._blamed()}; to go on, resume before round {self._counted_last} with "
            said += f"clipping, if the method has it, or without a client; or here {mend}"
            raise Stalled(said, self._counted_last)
        raise RunError(f"{said}; to go on, resume {mend}")

    def count(self, server_round: int, distances: Mapping[str, float]) -> None:
        """Note a round that gave an aggregate, and the distances of its clients' replies."""
        self.counted += 1
        self.is_open = False
        self._in_a_row = self._failed = 0
        self._counted_last = server_round
        farthest = sorted(distances.items(), key=lambda pair: (-pair[1], pair[0]))[:NAMED]
        self._farthest = ", ".join(f"{name} ({times:.2g})" for name, times in farthest)

    def fail(self, could_not_train: Iterable[bool]) -> None:
        """Note that a round has no admitted reply, and whose clients could not train."""
        self._failed += any(could_not_train)

    def skip(self, server_round: int, reason: str) -> None:
        """Note and log a skipped round."""
        self.skipped += 1
        self.is_open = False
        self._in_a_row += 1
        self._last = f"round {server_round}: {reason}"
        log(WARNING, "aggregate_train: round %d is skipped: %s", server_round, reason)

    def end(self) -> None:
        """Log how many rounds counted; raise a RunError if none did."""
        rounds = self.counted + self.skipped
        if rounds and not self.counted:
            raise RunError(f"every round was skipped; {self._last}")
        last = f"; the last that was skipped: {self._last}" if self.skipped else ""
        if self._in_a_row and self._counted_last and self._failed == self._in_a_row:
            last += f"; {self._blamed()}"
        level = WARNING if self.skipped else INFO
        log(level, "%d of %d rounds counted%s", self.counted, rounds, last)

    def _blamed(self) -> str:
        """Say after which round no client could train, and which replies lay farthest in it."""
        return (
            f"no client could train after round {self._counted_last}; in it these replies lay "
            f"farthest, in multiples of the usual distance: {self._farthest}"
        )
