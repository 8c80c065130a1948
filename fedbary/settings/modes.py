"""The modes of a federation: rounds, or aggregation as replies arrive."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from fedbary.attacks import is_omniscient
from fedbary.errors import SettingError
from fedbary.parts.parameters import Checked, Count, NotNegative, Number, Positive, Share

if TYPE_CHECKING:
    from fedbary.settings.model import Settings


@dataclass(frozen=True)
class Clocked(Checked):
    """Settings of every mode.

    Parameters
    ----------
    speeds
        Virtual clock of the simulation; mode=async needs one. none: no clock. uniform, lognormal:
        the seed draws clients' seconds. A .csv file: columns site, seconds_per_example, latency,
        and perhaps away. The metrics.jsonl of a run: that run is replayed.
    """

    speeds: str = "none"

    @property
    def has_clock(self) -> bool:
        """True if the run has a virtual time."""
        return self.speeds != "none"

    @property
    def replays(self) -> bool:
        """True if the run repeats another in the order of its journal."""
        return self.speeds.endswith(".jsonl")

    def asked(self, clients: int, least: int = 1) -> int:
        """Return how many of so many clients train at a time, but for `concurrency`."""
        return clients

    def unfit(self, settings: Settings) -> Iterator[tuple[str, str]]:
        """Yield the run's settings that do not fit the mode, each with what is allowed."""
        known = self.speeds in ("none", "uniform", "lognormal")
        if not known and not self.speeds.endswith((".csv", ".jsonl")):
            yield "speeds", "none, uniform, lognormal, or the path of a .csv"


@dataclass(frozen=True)
class Asynchronous(Clocked):
    """The server keeps clients at work, and aggregates whenever enough replies have arrived.

    A "round" in settings and log is then one aggregate. A client that has replied is asked again
    only after its reply is aggregated; one that has failed, after the next aggregate.

    Parameters
    ----------
    concurrency : int or None
        Number of clients at work at a time; none: all.
    buffer : int
        Number of admitted replies that make an aggregate; fewer if no further client can be asked.
        The first aggregate waits for three, which are compared with each other.
    staleness : str
        Weight of a change that began s aggregates ago. constant: 1. even: (1 + s)/u, with u the
        aggregates made while the mean client works; fast clients then have no more influence.
        polynomial: (1 + s)^−a. hinge: 1 up to s = b, then 1/(a (s − b) + 1). Undamped sites, sums
        and FedAG's networks are replaced whole, however late. A damped site goes 1 − (1 − γ)^w of
        the way; point weights beside sites are weighed.
    staleness_rate : float
        a of polynomial and hinge.
    staleness_grace : int
        b of hinge.

    Raises
    ------
    SettingError
        If a parameter is out of its range.
    """

    concurrency: Count | None = None
    buffer: Count = 1
    staleness: Literal["constant", "even", "polynomial", "hinge"] = "constant"
    staleness_rate: NotNegative = 0.5
    staleness_grace: Number = 4

    def unfit(self, settings: Settings) -> Iterator[tuple[str, str]]:
        """Yield the run's settings that need rounds, or as many clients as it has not."""
        at_work = self.concurrency or settings.clients
        if at_work > settings.clients:
            yield "concurrency", f"none, or from 1 to the {settings.clients} clients"
        if self.buffer > at_work:
            once = "a client replies once to each"
            yield "buffer", f"from 1 to the {at_work} clients at work: {once}"
        if settings.min_replies > self.buffer:
            yield "min_replies", f"from 1 to the {self.buffer} replies of an aggregate"
        if is_omniscient(settings.attack):
            yield "attack", "another attack for mode=async: this one sees the replies of a round"
        if settings.projection != "none":
            yield "projection", "none for mode=async"
        yield from super().unfit(settings)

    def weight(self, aggregates: int, at_work: int) -> float:
        """Return the weight of a change that began s aggregates ago, with so many clients at work.

        All but even are from FedAsync, section 5.2. With even a client's total weight is in
        proportion to its number of examples, however fast it is: its working times, counted in
        aggregates, add up to the run.
        """
        if self.staleness == "polynomial":
            return float((1 + aggregates) ** -self.staleness_rate)
        if self.staleness == "even":
            return (1 + aggregates) * self.buffer / at_work
        late = max(0, aggregates - self.staleness_grace) if self.staleness == "hinge" else 0
        return 1 / (self.staleness_rate * late + 1)


@dataclass(frozen=True)
class Synchronous(Clocked):
    """The server asks clients and waits for all of them, or until `round_timeout`.

    On a virtual clock it may wait for fewer clients, but at least for `min_replies`. A later reply
    is lost; its client may take part in the next round.

    Parameters
    ----------
    participation : float
        Fraction of the clients that train in a round.
    compress : str
        log_var: log-variances are sent in 8 bits. all: means and deterministic weights are also
        sent in 16 bits.
    wait_for : float
        The fraction of a round's clients, the fastest, that the server waits for.
    deadline : float or None
        Virtual seconds after which a round ends.

    Raises
    ------
    SettingError
        If a parameter is out of its range.
    """

    participation: Share = 1.0
    compress: Literal["none", "log_var", "all"] = "none"
    wait_for: Share = 1.0
    deadline: Positive | None = None

    def asked(self, clients: int, least: int = 1) -> int:
        """Return how many of so many clients train in a round."""
        return max(least, round(self.participation * clients))

    def unfit(self, settings: Settings) -> Iterator[tuple[str, str]]:
        """Yield the run's settings that need a virtual clock; `round_timeout` is real."""
        if self.wait_for < 1 and not self.has_clock:
            yield "wait_for", "1 without speeds, the virtual clock"
        if self.deadline is not None and not self.has_clock:
            allowed = "none without speeds, the virtual clock; round_timeout is real"
            yield "deadline", allowed
        if self.replays:
            yield "speeds", "no .jsonl for mode=rounds, which has no order to replay"
        yield from super().unfit(settings)

    def awaited(self, seconds: Sequence[float], min_replies: int) -> tuple[int, float]:
        """Return the number of a round's fastest replies that count, and the round's duration.

        Parameters
        ----------
        seconds
            Seconds of each reply, ascending; one or more.
        min_replies
            Number of replies that are always waited for.
        """
        least = min(min_replies, len(seconds))
        count = max(least, math.ceil(round(self.wait_for * len(seconds), 9)))
        last = seconds[count - 1]
        if self.deadline is None or last <= self.deadline:
            return count, last
        in_time = sum(each <= self.deadline for each in seconds[:count])
        if in_time >= least:
            return in_time, self.deadline
        return least, seconds[least - 1]


MODES: Mapping[str, type[Synchronous] | type[Asynchronous]] = MappingProxyType(
    {"rounds": Synchronous, "async": Asynchronous}
)
"""The class of each mode's parameters by the mode's name."""


def require_real_time(settings: Settings) -> None:
    """Raise a SettingError if a run on real servers has a virtual clock."""
    if settings.pace.has_clock:
        raise SettingError(
            "speeds", settings.pace.speeds, "none on real servers, whose time is real"
        )


def require_virtual_time(settings: Settings) -> None:
    """Raise a SettingError if a simulation without rounds has no virtual clock."""
    if settings.mode == "async" and not settings.pace.has_clock:
        allowed = "uniform, lognormal or a .csv for mode=async, whose simulation needs a clock"
        raise SettingError("speeds", "none", allowed)
