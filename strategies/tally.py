"""Which rounds of a run counted, and when too few do."""

from __future__ import annotations

from logging import INFO, WARNING

from flwr.supercore import log

from fedbary.errors import RunError, SettingError


class Tally:
    """Count the rounds that gave an aggregate, and those that were skipped.

    Parameters
    ----------
    max_skipped : int or None
        After so many skipped rounds in a row no other begins; None: however many.

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

    def begin(self) -> None:
        """Raise a RunError if the last `max_skipped` rounds were skipped."""
        if self._in_a_row == self.max_skipped:
            raise RunError(f"{self.max_skipped} rounds in a row were skipped; {self._last}")

    def count(self) -> None:
        """Note a round that gave an aggregate."""
        self.counted += 1
        self._in_a_row = 0

    def skip(self, server_round: int, reason: str) -> None:
        """Note and log a round that gave none."""
        self.skipped += 1
        self._in_a_row += 1
        self._last = f"round {server_round}: {reason}"
        log(WARNING, "aggregate_train: round %d is skipped: %s", server_round, reason)

    def end(self, earlier: int) -> None:
        """Log how many rounds counted; raise a RunError if none did, and there are no earlier ones.

        Parameters
        ----------
        earlier : int
            Number of rounds of the run that this one goes on from.
        """
        rounds = self.counted + self.skipped
        if rounds and not self.counted and not earlier:
            raise RunError(f"every round was skipped; {self._last}")
        last = f"; the last that was skipped: {self._last}" if self.skipped else ""
        level = WARNING if self.skipped else INFO
        log(level, "%d of %d rounds counted%s", self.counted, rounds, last)
