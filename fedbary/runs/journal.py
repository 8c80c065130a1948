"""The journal of a run without rounds, by which another run repeats it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from fedbary.data.paths import user_path
from fedbary.errors import SettingError
from fedbary.parts.parameters import told
from fedbary.runs.location import read_settings
from fedbary.runs.longer import earlier_rates
from fedbary.runs.metrics_file import read_rounds
from fedbary.runs.schema import JOURNAL
from fedbary.settings.config import Settings
from fedbary.settings.modes import Asynchronous, Clocked


def journal_of(settings: Settings) -> list[Mapping[str, Any]]:
    """Return the ends of all questions of the run whose metrics.jsonl the settings name.

    Raises
    ------
    SettingError
        If the file cannot be read, or is that of a run with rounds, of one that `fedbary forget`
        wrote, of one whose first learning rates were those of fewer rounds, or of one with fewer
        aggregates, or with another number of clients at work or of replies to an aggregate.
    """
    path = told(Clocked, settings).speeds
    folder = user_path(path).parent
    rounds = read_rounds(folder)
    if any(JOURNAL not in line for line in rounds[1:]) or not rounds:
        allowed = f"the metrics of a run with mode=async, each aggregate with its {JOURNAL}"
        raise SettingError("speeds", path, allowed)
    repeated = SimpleNamespace(**read_settings(folder))
    theirs, mine = told(Asynchronous, repeated), told(Asynchronous, settings)
    if settings.rounds > repeated.rounds:
        allowed = f"at most {repeated.rounds}, as the run that it repeats has no more"
        raise SettingError("rounds", settings.rounds, allowed)
    for name in ("concurrency", "buffer"):
        if getattr(theirs, name) != getattr(mine, name):
            allowed = f"{getattr(theirs, name) or 'none'}, as in the run that it repeats"
            raise SettingError(name, getattr(mine, name) or "none", allowed)
    if said := earlier_rates(folder, settings):
        allowed = f"a run whose learning rates followed one schedule. {said[0]}"
        raise SettingError("speeds", path, allowed)
    for line in rounds[1:]:
        if not isinstance(line[JOURNAL], list) or not all(map(_is_written, line[JOURNAL])):
            allowed = f"a {JOURNAL} as the run wrote it: site, round, asked, arrived, end"
            raise SettingError("speeds", path, allowed)
    return [row for line in rounds[1:] for row in line[JOURNAL]]


def _is_written(row: object) -> bool:
    """Return whether a row of a journal has a site, an end, and times that are numbers."""
    if not isinstance(row, Mapping):
        return False
    times = [row.get(name) for name in ("round", "asked", "arrived")]
    known = all(isinstance(time, int | float) and math.isfinite(time) for time in times)
    return known and all(isinstance(row.get(name), str) for name in ("site", "end"))
