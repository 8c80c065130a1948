"""A virtual clock for a simulation: how many seconds each client's work takes."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedbary.data.paths import content_of, user_path
from fedbary.errors import SettingError
from fedbary.seeds import derive_seed

COLUMNS = ("site", "seconds_per_example", "latency")
"""The columns of a trace."""

LEAST_SECONDS, MOST_SECONDS = 1e-3, 1e-2
"""Seconds an example of the fastest and the slowest client that `uniform` draws."""

MEDIAN_SECONDS, LOG_STD = 3e-3, 0.9
"""Of `lognormal`: four of five clients lie within a factor of ten."""

LATENCY_EXAMPLES = 50
"""A drawn latency is the time of so many examples: slow machines have slow lines."""


@dataclass(frozen=True)
class Speed:
    """How fast a client is.

    Parameters
    ----------
    seconds_per_example : float
        Of one pass over one example, above 0.
    latency : float
        Seconds of a message there and back, 0 or more.
    """

    seconds_per_example: float
    latency: float

    def seconds(self, examples: int) -> float:
        """Return how long a reply takes that passes over so many examples."""
        return self.latency + self.seconds_per_example * examples


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
        If the trace cannot be read; of a site, when it is asked for, if the trace does not name it.
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
        lines = content_of(user_path(path)).decode().splitlines()
        rows = list(csv.reader(lines, strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        allowed = f"a CSV with the columns {', '.join(COLUMNS)}"
        raise SettingError("speeds", error, allowed) from None
    if not rows or tuple(rows[0]) != COLUMNS:
        head = ",".join(rows[0]) if rows else "no line"
        raise SettingError(f"speeds {path}", head, f"the first line {','.join(COLUMNS)}")
    found: dict[str, Speed] = {}
    for number, row in enumerate(rows[1:], 2):
        site, speed = _read(f"speeds {path}, line {number}", row)
        if site in found:
            raise SettingError(f"speeds {path}, line {number}", site, "each site once")
        found[site] = speed

    def named(site: str) -> Speed:
        if site not in found:
            raise SettingError(f"speeds {path}", "no line", f"one for {site}")
        return found[site]

    return named


def _read(place: str, row: Sequence[str]) -> tuple[str, Speed]:
    try:
        site, seconds, latency = row
        speed = Speed(float(seconds), float(latency))
    except ValueError:
        raise SettingError(place, ",".join(row), "a site and two numbers of seconds") from None
    if not (0 < speed.seconds_per_example < math.inf and 0 <= speed.latency < math.inf):
        allowed = "finite seconds, above 0 an example, a latency from 0 up"
        raise SettingError(place, ",".join(row), allowed)
    return site, speed
