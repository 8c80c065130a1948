"""A virtual clock for a simulation: the seconds of each client's work."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fedbary.data.paths import content_of, user_path
from fedbary.errors import SettingError
from fedbary.seeds import derive_seed

COLUMNS = ("site", "seconds_per_example", "latency")
"""The columns of a trace."""

AWAY = "away"
"""Optional column of a trace: times when the site is away, such as 10-20 35-50."""

LEAST_SECONDS, MOST_SECONDS = 1e-3, 1e-2
"""Seconds an example of the fastest and the slowest client that `uniform` draws."""

MEDIAN_SECONDS, LOG_STD = 3e-3, 0.9
"""Spread of `lognormal`: four of five clients lie within a factor of ten."""

LATENCY_EXAMPLES = 50
"""Examples whose time makes a drawn latency: slow machines have slow lines."""


@dataclass(frozen=True)
class Speed:
    """Speed of a client.

    Parameters
    ----------
    seconds_per_example : float
        Seconds of one pass over one example, above 0.
    latency : float
        Seconds of a message there and back, 0 or more.
    away : sequence of (float, float)
        Intervals of absence, in virtual seconds, ascending. Its work rests meanwhile.
    """

    seconds_per_example: float
    latency: float
    away: Sequence[tuple[float, float]] = ()

    def seconds(self, examples: float, now: float = 0.0) -> float:
        """Return the seconds of a reply with passes over so many examples, asked for now."""
        arrives = now + self.latency + self.seconds_per_example * examples
        for leaves, returns in self.away:
            if leaves < arrives and now < returns:
                arrives += returns - max(leaves, now)
        return arrives - now


def speeds_of(chosen: str, seed: int) -> Callable[[str], Speed]:
    """Return the function from a site's name to its speed, which the seed and the name set.

    Parameters
    ----------
    chosen : str
        uniform, lognormal, or the path of a trace, a CSV with `COLUMNS`.
    seed : int
        The run's.

    Raises
    ------
    SettingError
        If the trace cannot be read; at a call for a site, if the trace does not name it.
    """
    if chosen not in ("uniform", "lognormal"):
        return _traced(chosen)

    def drawn(site: str) -> Speed:
        rng = np.random.default_rng(derive_seed(seed, f"speed of {site}"))
        if chosen == "uniform":
            seconds = float(rng.uniform(LEAST_SECONDS, MOST_SECONDS))
        else:
            seconds = MEDIAN_SECONDS * math.exp(LOG_STD * float(rng.standard_normal()))
        return Speed(seconds, LATENCY_EXAMPLES * seconds)

    return drawn


def _traced(path: str) -> Callable[[str], Speed]:
    try:
        lines = content_of(user_path(path)).decode("utf-8-sig").splitlines()
        rows = list(csv.reader(lines, strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        allowed = f"a CSV with the columns {', '.join(COLUMNS)}"
        raise SettingError("speeds", error, allowed) from None
    if not rows or tuple(rows[0]) not in (COLUMNS, (*COLUMNS, AWAY)):
        head = ",".join(rows[0]) if rows else "no line"
        allowed = f"the first line {','.join(COLUMNS)}, with ,{AWAY} at its end or without"
        raise SettingError(f"speeds {path}", head, allowed)
    found: dict[str, Speed] = {}
    for number, row in enumerate(rows[1:], 2):
        site, speed = _read(f"speeds {path}, line {number}", row, len(rows[0]))
        if site in found:
            raise SettingError(f"speeds {path}, line {number}", site, "each site once")
        found[site] = speed

    def named(site: str) -> Speed:
        if site not in found:
            raise SettingError(f"speeds {path}", "no line", f"one for {site}")
        return found[site]

    return named


def _read(place: str, row: Sequence[str], columns: int) -> tuple[str, Speed]:
    if len(row) != columns:
        raise SettingError(place, ",".join(row), f"{columns} entries, as the first line has")
    site, seconds, latency, *away = row
    try:
        speed = Speed(float(seconds), float(latency), _times(away[0]) if away else ())
    except ValueError:
        said = "a site, two numbers of seconds, and times away such as 10-20 35-50"
        raise SettingError(place, ",".join(row), said) from None
    if not (0 < speed.seconds_per_example < math.inf and 0 <= speed.latency < math.inf):
        allowed = "finite seconds, above 0 an example, a latency from 0 up"
        raise SettingError(place, ",".join(row), allowed)
    edges = [edge for pair in speed.away for edge in pair]
    if not all(low < high for low, high in pairwise([-math.inf, *edges, math.inf])):
        raise SettingError(place, away[0], "finite times away that ascend, such as 10-20 35-50")
    return site, speed


def _times(text: str) -> list[tuple[float, float]]:
    """Read times such as 10-20 35-50; a ValueError for another text."""
    pairs = (each.split("-") for each in text.split())
    return [(float(leaves), float(returns)) for leaves, returns in pairs]
