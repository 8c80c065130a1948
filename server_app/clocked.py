"""Rounds, and aggregates without rounds, on the simulation's virtual clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedbary.inference import StepParameters
from fedbary.parts.parameters import told
from fedbary.runs.schema import STALENESS, VIRTUAL_SECONDS
from fedbary.settings.config import Settings
from fedbary.settings.modes import Clocked
from server_app.recorder import Recorder
from server_app.roster.asker import Asker
from server_app.roster.roster import Roster
from server_app.rounds import Rounds
from server_app.speeds import speeds_of
from strategies import AsynchronousStrategy


class Clock:
    """How many seconds a node's reply takes.

    Parameters
    ----------
    settings, roster
        The run's; `speeds` is not none.
    """

    def __init__(self, settings: Settings, roster: Roster) -> None:
        self._speeds = speeds_of(told(Clocked, settings).speeds, settings.seed)
        self._roster, self._passes = roster, told(StepParameters, settings).local_epochs
        for member in roster.members:
            self._speeds(member.name)  # says at once what a trace lacks

    def seconds(self, node: int) -> float:
        """Return the seconds of `local_epochs` passes over a node's examples, and its latency."""
        name = self._roster.name(node) or str(node)
        return self._speeds(name).seconds(self._passes * self._roster.trained_on(node))


class ClockedRounds(Rounds):
    """Rounds that each take as long as their slowest client.

    Parameters
    ----------
    roster, asker, recorder, config
        Those of `Rounds`.
    clock
        The run's.
    """

    def __init__(
        self,
        roster: Roster,
        asker: Asker,
        recorder: Recorder,
        config: Mapping[str, Any],
        clock: Clock,
    ) -> None:
        super().__init__(roster, asker, recorder, config)
        lines = recorder.results.rounds
        self._clock, self._now = clock, float(lines[-1][VIRTUAL_SECONDS]) if lines else 0.0

    def measured(self) -> dict[str, Any]:
        """Return the virtual time after the slowest of the round's clients."""
        self._now += max(map(self._clock.seconds, self._trainers), default=0.0)
        return {VIRTUAL_SECONDS: self._now}


class Aggregates(Rounds):
    """What aggregates without rounds call back; the strategy keeps the time."""

    def measured(self) -> dict[str, Any]:
        """Return the virtual time, and how late the replies were."""
        strategy = self._recorder.strategy
        assert isinstance(strategy, AsynchronousStrategy)
        return {VIRTUAL_SECONDS: strategy.now, STALENESS: strategy.staleness}


def rounds_of(
    roster: Roster, asker: Asker, recorder: Recorder, config: Mapping[str, Any]
) -> tuple[Rounds, Clock | None]:
    """Return what the run's mode calls back, and its clock, if it has one."""
    settings = recorder.settings
    if told(Clocked, settings).speeds == "none":
        return Rounds(roster, asker, recorder, config), None
    clock = Clock(settings, roster)
    if settings.mode == "async":
        return Aggregates(roster, asker, recorder, config), clock
    return ClockedRounds(roster, asker, recorder, config, clock), clock
