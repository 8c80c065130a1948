"""Rounds, and aggregates without rounds, on the simulation's virtual clock."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fedbary.inference import StepParameters
from fedbary.methods import method_of
from fedbary.parts.parameters import told
from fedbary.runs.journal import journal_of
from fedbary.runs.schema import JOURNAL, LATENESS, VIRTUAL_SECONDS
from fedbary.settings.config import Settings
from fedbary.settings.modes import Clocked, Synchronous, replays
from server_app.recorder import Recorder
from server_app.roster.asker import Asker
from server_app.roster.roster import Roster
from server_app.rounds import Rounds
from server_app.speeds import speeds_of
from strategies import AsynchronousStrategy


class Clock:
    """Seconds of a node's reply.

    Parameters
    ----------
    settings, roster
        The run's; `speeds` is not none.
    """

    def __init__(self, settings: Settings, roster: Roster) -> None:
        self._speeds = speeds_of(told(Clocked, settings).speeds, settings.seed)
        self._roster, self._method = roster, method_of(settings)
        self._epochs = getattr(settings, "local_epochs", 1)
        self._batch_size = told(StepParameters, settings).batch_size
        for member in roster.members:
            self._speeds(member.name)  # raises an error at once if the trace lacks a site

    def seconds(self, node: int, now: float) -> float:
        """Return the seconds of a node's passes over its examples if it is asked now.

        Its latency and the times when it is away are added.
        """
        name, examples = self._roster.name(node) or str(node), self._roster.trained_on(node)
        passes = self._method.passes(self._epochs, max(1, math.ceil(examples / self._batch_size)))
        return self._speeds(name).seconds(passes * examples, now)


class ClockedRounds(Rounds):
    """Rounds as long as the slowest client that the server waits for.

    A client whose reply would come too late, and so be lost, is not asked. That saves its work.

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
        self._lasts = 0.0

    def trainers(self, server_round: int) -> list[int]:
        """Return the nodes whose replies the server waits for."""
        asked = super().trainers(server_round)
        if not asked:
            return asked
        settings = self._recorder.settings
        takes = {node: self._clock.seconds(node, self._now) for node in asked}
        by_time = sorted(asked, key=takes.__getitem__)
        ascending = [takes[node] for node in by_time]
        mode = told(Synchronous, settings)
        count, self._lasts = mode.awaited(ascending, settings.min_replies)
        in_time = set(by_time[:count])
        self._trainers = [node for node in asked if node in in_time]
        return list(self._trainers)

    def measured(self) -> dict[str, Any]:
        """Return the virtual time after the slowest client that the round waited for."""
        self._now, self._lasts = self._now + self._lasts, 0.0
        return {VIRTUAL_SECONDS: self._now}


class Aggregates(Rounds):
    """Callbacks of aggregates without rounds; the strategy keeps the time."""

    def measured(self) -> dict[str, Any]:
        """Return the virtual time, and the replies' staleness."""
        strategy = self._recorder.strategy
        assert isinstance(strategy, AsynchronousStrategy)
        found = {LATENESS: strategy.staleness, JOURNAL: strategy.journal}
        virtual = told(Clocked, self._recorder.settings).speeds != "none"
        return {**({VIRTUAL_SECONDS: strategy.now} if virtual else {}), **found}


def clock_of(settings: Settings, roster: Roster) -> Clock | None:
    """Return the run's clock; None if it has none, or repeats another run.

    Raises
    ------
    SettingError
        If the file of `speeds` does not do.
    """
    if replays(settings):
        journal_of(settings)
        return None
    return None if told(Clocked, settings).speeds == "none" else Clock(settings, roster)


def rounds_of(
    roster: Roster,
    asker: Asker,
    recorder: Recorder,
    config: Mapping[str, Any],
    clock: Clock | None,
) -> Rounds:
    """Return the callbacks of the run's mode."""
    if recorder.settings.mode == "async":
        return Aggregates(roster, asker, recorder, config)
    if clock is None:
        return Rounds(roster, asker, recorder, config)
    return ClockedRounds(roster, asker, recorder, config, clock)
