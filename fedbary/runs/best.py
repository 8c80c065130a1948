"""The best round of a run, by a score on validation data; found from the lines of metrics.jsonl."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedbary.runs.direction import lower_is_better
from fedbary.runs.schema import BEST_ROUND, HELD_OUT, ROUND, SKIPPED
from fedbary.settings.config import Settings

Line = Mapping[str, Any]


def validation_score(settings: Settings, line: Line) -> float:
    """Return a round's score `keep_best` on validation data; NaN if there is none.

    It is the server's score, or the mean over the clients' holdouts.
    """
    scores = line if settings.server_validates else line.get(HELD_OUT, {})
    value = scores.get(settings.keep_best)
    return math.nan if value is None else float(value)


def counted_rounds(lines: Sequence[Line]) -> list[int]:
    """Return the rounds that count: neither round 0, nor skipped."""
    return [line[ROUND] for line in lines if line[ROUND] > 0 and not line[SKIPPED]]


def best_round(settings: Settings, lines: Sequence[Line]) -> int | None:
    """Return the first of the rounds that are best by `keep_best`; None before there is any."""
    better = min if lower_is_better(settings.keep_best) else max
    scores = _scores(settings, lines)
    return better(scores, key=scores.__getitem__) if scores else None


def is_stale(settings: Settings, lines: Sequence[Line]) -> bool:
    """Return whether `patience` rounds have been scored since the best one."""
    best = lines[-1].get(BEST_ROUND)
    if not settings.patience or best is None:
        return False
    return sum(number > best for number in _scores(settings, lines)) >= settings.patience


def result_line(lines: Sequence[Line]) -> Line:
    """Return the line of the round whose model is the run's: the best if it is kept, or the last.

    `lines` are those of rounds 0, 1, ….
    """
    best = lines[-1].get(BEST_ROUND)
    return lines[-1] if best is None else lines[best]


def _scores(settings: Settings, lines: Sequence[Line]) -> dict[int, float]:
    """Return the scores of the rounds that count, by their numbers.

    Rounds without a finite score are left out: no client has evaluated them.
    """
    counted = counted_rounds(lines)
    scores = {
        line[ROUND]: validation_score(settings, line) for line in lines if line[ROUND] in counted
    }
    return {number: score for number, score in scores.items() if math.isfinite(score)}
