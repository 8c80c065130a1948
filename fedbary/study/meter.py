"""The bar of a sweep: how far its runs are, and how much time is left."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.progress import Progress, TaskID

from fedbary.runs.duration import duration
from fedbary.settings.config import Settings


class Meter:
    """Moves the bar as the runs' rounds are written, and says how much time is left.

    The time left is the estimate of the work ahead, scaled by the error of the estimates so far.
    Rounds of an earlier sweep took none of this sweep's time.
    """

    def __init__(
        self,
        progress: Progress,
        rounds: Callable[[str], int],
        todo: dict[str, Settings],
        weights: dict[str, float],
        jobs: int,
    ) -> None:
        self.ended: set[str] = set()
        self._progress, self._rounds, self._todo, self._weights = progress, rounds, todo, weights
        self._jobs = jobs
        self._started = time.monotonic()
        total = sum(weights.values())
        self._task: TaskID = progress.add_task("", total=total or 1, left="")
        self._before = self._done()

    def update(self) -> None:
        """Draw how far the runs are."""
        total = sum(self._weights.values())
        done = self._done()
        elapsed, made = time.monotonic() - self._started, done - self._before
        pace = elapsed / made if made > 0.02 * total else 1 / self._jobs
        self._progress.update(
            self._task,
            completed=done,
            description=f"{len(self.ended)} of {len(self._todo)} runs",
            left=f"about {duration(pace * (total - done))} left",
            refresh=True,
        )

    def _done(self) -> float:
        return sum(self._part(name) * weight for name, weight in self._weights.items())

    def _part(self, name: str) -> float:
        if name in self.ended:
            return 1.0
        return min(1.0, self._rounds(name) / self._todo[name].rounds)
