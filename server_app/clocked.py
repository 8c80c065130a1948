"""Rounds, and aggregates without rounds, on the simulation's virtual clock."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from torch import Tensor

from fedbary.data.forms import content_of, user_path
from fedbary.errors import SettingError
from fedbary.gaussian import Posterior
from fedbary.methods import Bench, arguments_of, method_of, require_room
from fedbary.runs.journal import journal_of
from fedbary.runs.schema import JOURNAL, LATENESS, VIRTUAL_SECONDS
from fedbary.seeds import derive_seed
from fedbary.server_app.recorder import Recorder, means_of
from fedbary.server_app.roster.asker import Asker
from fedbary.server_app.roster.roster import Roster
from fedbary.server_app.rounds import Rounds
from fedbary.settings.config import Settings
from fedbary.settings.modes import Synchronous
from fedbary.strategies import Arrivals, Federation, MethodStrategy, strategy_for
from fedbary.tasks import task_of

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


class Clock:
    """Seconds of a node's reply.

    Parameters
    ----------
    settings, roster
        The run's; `speeds` is not none.
    """

    def __init__(self, settings: Settings, roster: Roster) -> None:
        self._speeds = speeds_of(settings.pace.speeds, settings.seed)
        self._roster, self._method = roster, method_of(settings)
        self._local = settings.local
        for member in roster.members:
            self._speeds(member.name)  # raises an error at once if the trace lacks a site

    def seconds(self, node: int, now: float) -> float:
        """Return the seconds of a node's passes over its examples if it is asked now.

        Its latency and the times when it is away are added.
        """
        name, examples = self._roster.name(node) or str(node), self._roster.trained_on(node)
        local, batches = self._local, max(1, math.ceil(examples / self._local.batch_size))
        passes = self._method.passes(local.local_epochs, batches)
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
        assert isinstance(settings.pace, Synchronous)
        count, self._lasts = settings.pace.awaited(ascending, settings.min_replies)
        in_time = set(by_time[:count])
        self._trainers = [node for node in asked if node in in_time]
        return list(self._trainers)

    def measured(self) -> dict[str, Any]:
        """Return the virtual time after the slowest client that the round waited for."""
        self._now, self._lasts = self._now + self._lasts, 0.0
        return {**super().measured(), VIRTUAL_SECONDS: self._now}


class Aggregates(Rounds):
    """Callbacks of aggregates without rounds; the strategy keeps the time."""

    def measured(self) -> dict[str, Any]:
        """Return the virtual time, and the replies' staleness."""
        pace = self._recorder.strategy.pace
        assert isinstance(pace, Arrivals)
        found = {LATENESS: pace.staleness, JOURNAL: pace.journal}
        virtual = self._recorder.settings.pace.has_clock
        return {**({VIRTUAL_SECONDS: pace.now} if virtual else {}), **found}


def clock_of(settings: Settings, roster: Roster) -> Clock | None:
    """Return the run's clock; None if it has none, or repeats another run.

    Raises
    ------
    SettingError
        If the file of `speeds` does not do.
    """
    if settings.pace.replays:
        journal_of(settings)
        return None
    return Clock(settings, roster) if settings.pace.has_clock else None


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


def strategy_of(
    recorder: Recorder, rounds: Rounds, clock: Clock | None, prior: ArrayRecord | None = None
) -> MethodStrategy:
    """Return the strategy that the run's settings choose, with its callbacks."""
    settings, roster = recorder.settings, recorder.roster
    means = means_of(recorder.known_metrics)
    own = _parameters(settings, recorder.facts)
    if settings.mode == "async":
        own["asynchronous"] = settings.pace
        own["seconds"] = clock.seconds if clock else None
        own["journal"] = journal_of(settings) if settings.pace.replays else None
    return strategy_for(settings.method)(
        **own,
        min_replies=settings.min_replies,
        max_skipped=settings.max_skipped,
        max_weight_ratio=settings.weight_bound,
        train_metrics_aggr_fn=means,
        evaluate_metrics_aggr_fn=means,
        prior_arrays=prior,
        federation=Federation(
            trainers=rounds.trainers,
            evaluators=rounds.evaluators,
            tell=rounds.tell,
            name=roster.name,
            train_limit=roster.trained_on,
            evaluate_limit=roster.held_out,
            known_metrics=recorder.known_metrics,
            listener=recorder,
            doubt=partial(recorder.task.doubt, recorder.facts),
        ),
    )


def require_room_for_draws(settings: Settings, model: Mapping[str, Tensor]) -> None:
    """Refuse more samples than the machine's memory can hold."""
    drawn = model if method_of(settings).draws_around else Posterior.from_state_dict(model).log_var
    require_room("samples", settings.samples, drawn)


def bench_of(settings: Settings, facts: Mapping[str, Tensor]) -> Bench:
    """Return a network and the server's own examples, in the network's form."""
    task = task_of(settings)
    kept = task.server_shard()
    held = task.prepared(kept, facts) if facts else kept
    return Bench(task.make_model(task.signature()), held.x, held.y, task.loss(facts))


def _parameters(settings: Settings, facts: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the further arguments of the run's strategy."""
    bench = bench_of(settings, facts) if method_of(settings).needs_bench else None
    keep = settings.projection != "none"
    return {**arguments_of(settings), "seed": settings.seed, "bench": bench, "keep_models": keep}
