"""Trackers: a run's numbers, settings, pictures and posterior for a dashboard, a file each.

A tracker is a module of this package with one class

    Tracker(folder, settings)
        .scalars(values, step)          a round's numbers by name
        .end(pictures, posterior, export)   the files of the pictures and of the final posterior;
                                        `export` fills an empty folder as `fedbary export` does
        .stop(killed)                   the run ended without a result, by an error or killed
        .reopens                        whether a second one goes on in the first one's run

The module's name is the setting's value; nothing else has to be registered. A frozen dataclass
`Parameters`, if there is one, declares settings of its own, which `settings` holds. `LIBRARY` names
the library that the tracker imports when it begins; the extra of the tracker's name installs it. A
failure of a tracker never stops a run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from fedbary.errors import SettingError, one_line
from fedbary.runs.run_folder import POSTERIOR
from fedbary.runs.schema import ROUND
from fedbary.settings.config import Settings

Export = Callable[[Path], object]
"""Fills an empty folder with the run's model, see `fedbary.report.exported`."""


class Tracker(Protocol):
    """Messages to a dashboard about a run."""

    reopens: bool

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Begin a run, called as its folder is."""

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Take a round's numbers."""

    def end(self, pictures: Sequence[Path], posterior: Path, export: Export) -> None:
        """Take the run's pictures and its posterior, perhaps an export of it, and end it."""

    def stop(self, killed: bool) -> None:
        """End a run that failed, or was killed."""


class Tracking:
    """A run's tracker, whose first failure is its last word.

    Parameters
    ----------
    settings : Settings
        The run's.
    folder : Path
        The run's, which holds its pictures and its posterior at the end.
    warn : callable
        Takes a line for the server's log.
    """

    def __init__(self, settings: Settings, folder: Path, warn: Callable[[str], None]) -> None:
        self._name, self._folder, self._warn = settings.tracker, folder, warn
        self._tracker: Tracker | None = None
        if settings.tracker != "none":
            try:
                self._tracker = tracker_class(self._name)(folder, settings.model_dump())
            except Exception as error:  # noqa: BLE001 - no tracker stops a run
                self._give_up(error)

    def add_round(self, line: Mapping[str, Any]) -> None:
        """Take a line of metrics.jsonl."""
        values = {name: value for name, value in _numbers(line) if name != ROUND}
        self._tell(lambda tracker: tracker.scalars(values, int(line[ROUND])))

    def finish(self, export: Export) -> None:
        """Take the run folder's content, and what exports its model."""
        pictures = sorted(self._folder.glob("*.png"))
        posterior = self._folder / POSTERIOR
        self._tell(lambda tracker: tracker.end(pictures, posterior, export))

    def stop(self, killed: bool) -> None:
        """Say that the run has ended without a result."""
        self._tell(lambda tracker: tracker.stop(killed))

    def _tell(self, tell: Callable[[Tracker], None]) -> None:
        if self._tracker is not None:
            try:
                tell(self._tracker)
            except Exception as error:  # noqa: BLE001 - no tracker stops a run
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._tracker = None
        self._warn(f"tracker={self._name} is told nothing more: {one_line(error)}")


def note_killed(settings: Settings, folder: Path) -> None:
    """Tell the tracker, if it can be told, that a killed run has ended."""
    if settings.tracker != "none" and tracker_class(settings.tracker).reopens:
        Tracking(settings, folder, lambda line: None).stop(killed=True)


def tracker_class(name: str) -> type[Tracker]:
    """Return the class of a tracker.

    Raises
    ------
    SettingError
        If its library is not installed.
    """
    try:
        module = import_module(f"{__name__}.{name}")
        import_module(getattr(module, "LIBRARY", __name__))
    except ImportError:
        allowed = f"none, or what pip install 'fedbary[{name}]' brings"
        raise SettingError("tracker", name, allowed) from None
    found: type[Tracker] = module.Tracker
    return found


def _numbers(line: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield the finite numbers of a line of metrics by name, nested ones as ``outer/inner``."""
    for name, value in line.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and math.isfinite(value):
            yield f"{prefix}{name}", float(value)
