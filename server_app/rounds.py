"""Callbacks of a run's rounds: the choice of nodes, the messages' entries, the record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from logging import INFO, LogRecord
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, MetricRecord

from fedbary.runs.run_folder import RunFolder
from fedbary.runs.schema import CLIENTS, ROUND, UNASKED, is_stale
from fedbary.runs.sites import write_site_keys
from fedbary.server_app.recorder import Recorder
from fedbary.server_app.roster.asker import Asker
from fedbary.server_app.roster.roster import Roster
from fedbary.strategies.federation import ASKED_KEY, CLIENTS_KEY, COUNTED_KEY, EXAMPLES_KEY
from fedbary.strategies.gate import at_most
from fedbary.strategies.internals import FLOWER_LOGGER as logger
from fedbary.strategies.internals import log
from fedbary.texts import listed

TRAIN_METRICS = 3
"""Numbers of a training reply beside its arrays."""


class Rounds:
    """Chooses each round's nodes, and records its result.

    Parameters
    ----------
    roster, asker, recorder
        The run's. The recorder knows the strategy before the first round.
    config
        Entries of every message beside its arrays.
    """

    def __init__(
        self, roster: Roster, asker: Asker, recorder: Recorder, config: Mapping[str, Any]
    ) -> None:
        self._roster, self._asker, self._recorder = roster, asker, recorder
        self._config = config
        self._trainers: list[int] = []
        self._unasked: list[str] = []

    def trainers(self, server_round: int) -> list[int]:
        """Return the nodes that train in a round."""
        self._roster.note_silent(self._recorder.strategy.unanswered)
        self._trainers = self._asked(self._roster.participants(server_round), server_round)
        return list(self._trainers)

    def _asked(self, nodes: list[int], server_round: int) -> list[int]:
        """Return the nodes to ask: those whose budget forbids an answer are passed over.

        Those that may answer seldom wait until the others' rounds are near their end, or as few
        rounds are left as they have answers. If too few would be left, all are asked.
        """
        recorder, size = self._recorder, TRAIN_METRICS
        if not self._roster.has_budgets:
            return nodes
        like = recorder.strategy.method.reply_like(recorder.model.state_dict())
        size += sum(tensor.numel() for tensor in like.values())
        lines, name = recorder.results.rounds, self._roster.name
        begun = {each["site"] for line in lines for each in line.get(CLIENTS, ())}
        left = {node: self._roster.answers_left(node, size) for node in nodes}
        able = [node for node in nodes if left[node]]
        if not recorder.task.near(lines):
            often = min(recorder.strategy.method.often, max(left.values(), default=0))
            rounds = recorder.settings.rounds - server_round
            able = [
                node
                for node in able
                if name(node) in begun or left[node] >= often or left[node] > rounds
            ]
        able = able if len(able) >= recorder.settings.min_replies else nodes
        for node in able:
            self._roster.heard(node, size)
        unasked = [name(node) or "" for node in nodes if node not in able]
        if unasked and unasked != self._unasked:
            log(INFO, "Not asked, for their budgets are small or spent: %s", listed(unasked))
        self._unasked = unasked
        return able

    def evaluators(self, server_round: int) -> list[int]:
        """Return the nodes that score the global model after a round."""
        settings = self._recorder.settings
        self._roster.note_silent(self._recorder.strategy.unanswered)
        held_out = settings.holdout > 0 and settings.measures_clients(server_round)
        return self._roster.evaluators(server_round) if held_out else []

    def tell(self) -> dict[str, int | float]:
        """Return the messages' entries on the federation; a bound on weights holds for them too."""
        every: list[float] = [member.num_examples for member in self._roster.members]
        asked: list[float] = [*map(self._roster.trained_on, self._trainers)]
        if (ratio := self._recorder.settings.weight_bound) is not None:
            every, asked = (at_most(held, ratio, every) for held in (every, asked))
        return {
            EXAMPLES_KEY: int(sum(every)),
            CLIENTS_KEY: len(every),
            ASKED_KEY: int(sum(asked)),
            COUNTED_KEY: self._recorder.strategy.counted,
        }

    def measured(self) -> dict[str, Any]:
        """Return the recorded entries of a round beside its scores."""
        return {UNASKED: self._unasked} if self._unasked else {}

    def after(self, round_here: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Put the task's questions to the sites, and record the round.

        `round_here` counts from this process's first round. A run ends early by `patience`, or
        once its task has settled.
        """
        recorder, results = self._recorder, self._recorder.results
        server_round = round_here + recorder.strategy.completed_rounds
        found = recorder.take(arrays.to_torch_state_dict())
        members = found.members if server_round >= len(results.rounds) else {}
        last = results.rounds[-1] if results.rounds else {}
        write_site_keys(results.path, self._roster.keys)
        questions = recorder.task.ask_after(members, last)
        told = self._asker.hold(questions, recorder.strategy.contributors, self._config)
        recorded = recorder.record(server_round, {**told, **self.measured()})
        if server_round < recorder.settings.rounds:
            if is_stale(recorder.settings, results.rounds):
                best, score = results.result[ROUND], recorder.settings.keep_best
                raise _EarlyStop(f"{score} on validation data has not improved since round {best}")
            if why := recorder.task.settled(results.rounds):
                raise _EarlyStop(why)
        return recorded


class _EarlyStop(Exception):
    """Ends the rounds from the callback for scores, Flower's only one after each round."""


@contextmanager
def until_stale(results: RunFolder) -> Iterator[None]:
    """Let the rounds end early, and log the reason."""
    try:
        yield
    except _EarlyStop as why:
        log(INFO, "Stopped after round %d: %s", results.rounds[-1][ROUND], why)


@contextmanager
def only_our_lines() -> Iterator[None]:
    """Keep Flower's own lines on each round out of the log, in favour of one line a round.

    Warnings and errors stay.
    """

    def ours(record: LogRecord) -> bool:
        return record.levelno > INFO or "server_app" in Path(record.pathname).parts

    logger.addFilter(ours)
    try:
        yield
    finally:
        logger.removeFilter(ours)
