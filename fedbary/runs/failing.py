"""Runs that fail to learn, grow worse, or learn less than a linear model; and remedies.

A round's line names a fault of its model in `failing`, see `fedbary.tasks._failing`. It names the
lead of a linear model in `behind`, see `fedbary.tasks._failing`. In `rising` it names the round
whose NLL was clearly lower.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedbary.parts.parameters import NONE
from fedbary.runs.schema import BEHIND, CAUTIONS, FAILING, NLL, RISING, RMSE, ROUND
from fedbary.settings.combinations import may_keep_best
from fedbary.settings.config import Settings
from fedbary.settings.task_words import OfImages
from fedbary.texts import cut

PATIENCE = 3
"""Rounds in a row that are not yet reported as failing: every run begins with nothing learned."""

ANOTHER_DEAL = "partition=iid"

LASTING = 2
"""Rounds in a row of the second half behind a linear model that are reported."""

MOST, CAUSE = 3, 400
"""Most cautions of round 0 before a fault, and the most characters of one."""

RISE, LEAST_RISE, RISE_OF_NUMBERS = 0.1, 0.01, 0.1
"""An NLL of classes has risen from this part of the least one on, and by so many nats; one of
numbers, whose zero is a matter of units, by so many nats."""


def advised(
    line: Mapping[str, Any],
    settings: Settings,
    earlier: Sequence[Mapping[str, Any]] = (),
    dealt: bool = True,
) -> Mapping[str, Any]:
    """Return a round's line, with remedies if it names a fault or its NLL is above an earlier one.

    A fault begins with the cautions of round 0: what is odd in the data comes before any remedy.
    More rounds are no remedy where an earlier round had a lower NLL. Another partition is one only
    where the sites' data were `dealt`.
    """
    best = _better(line, earlier)
    if best and settings.keep_best != NLL and line[NLL] > best[NLL] + _allowed(best):
        said = f"its NLL of {line[NLL]:.4f} is above the {best[NLL]:.4f} of round {best[ROUND]}"
        line = {**line, RISING: said}
    for word in _words(line):
        causes = [] if word == RISING else (earlier or [line])[0].get(CAUTIONS, [])
        more = [f"{len(causes) - MOST} more cautions in round 0"] if len(causes) > MOST else []
        first = [cut(cause, CAUSE) for cause in causes[:MOST]]
        line = {**line, word: "; ".join([*first, *more, line[word]])}
        cures = {FAILING: _cures, RISING: _returns, BEHIND: _remedies}[word](settings, best)
        if tries := ", or ".join(c for c in cures if dealt or c != ANOTHER_DEAL):
            line = {**line, word: f"{line[word]}. Try {tries}"}
    return line


def _better(
    line: Mapping[str, Any], earlier: Sequence[Mapping[str, Any]]
) -> Mapping[str, Any] | None:
    """Return the trained round of the least NLL, if that is below the line's."""
    known = [one for one in [line, *earlier] if one.get(ROUND) and _is_finite(one.get(NLL))]
    best = min(known, key=lambda one: one[NLL], default=line)
    return best if known[:1] == [line] and best is not line else None


def _is_finite(score: float | None) -> bool:
    return score is not None and math.isfinite(score)


def _allowed(best: Mapping[str, Any]) -> float:
    """Return by how many nats an NLL may be above the least one."""
    return RISE_OF_NUMBERS if RMSE in best else max(RISE * best[NLL], LEAST_RISE)


def turn(rounds: Sequence[Mapping[str, Any]], planned: int) -> str:
    """Return the log's line after the last of these rounds; "" if nothing has changed.

    Parameters
    ----------
    rounds
        Lines of metrics.jsonl, from that of round 0.
    planned
        Number of rounds of the run. A linear model is ahead at first: it counts from half of them
        on.
    """
    failing = [FAILING in line for line in rounds[1:]]
    rising = [RISING in line for line in rounds[1:]]
    behind = [BEHIND in line for line in rounds[max(1, -(-planned // 2)) :]]
    if _begins(failing, PATIENCE):
        return f"Nothing learned in {PATIENCE} rounds: {rounds[-1][FAILING]}"
    if _begins(rising, PATIENCE):
        return f"The model was better before: {rounds[-1][RISING]}"
    if _begins(behind, LASTING):
        return f"Behind a linear model: {rounds[-1][BEHIND]}"
    if _ends(failing, PATIENCE):
        return "The model has begun to learn"
    if _ends(rising, PATIENCE):
        return "The NLL has fallen again"
    return "The model is no longer far behind a linear one" if _ends(behind, LASTING) else ""


def verdict(line: Mapping[str, Any]) -> str:
    """Return a verdict on a result that has not learned, or too little; "" for others."""
    said = {
        FAILING: "The model has not learned",
        RISING: "The model was better before",
        BEHIND: "The model is behind a linear one",
    }
    return ". ".join(f"{said[word]}: {line[word]}" for word in _words(line))


def _words(line: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys under which a line names a fault; a model that fails is also behind."""
    for word in (FAILING, RISING, BEHIND):
        if word in line and not (word == BEHIND and FAILING in line):
            yield word


def _begins(spell: Sequence[bool], patience: int) -> bool:
    return _lasts(spell, patience) and not _lasts(spell[:-1], patience)


def _ends(spell: Sequence[bool], patience: int) -> bool:
    return _lasts(spell[:-1], patience) and not _lasts(spell, patience)


def _lasts(spell: Sequence[bool], patience: int) -> bool:
    return len(spell) >= patience and all(spell[-patience:])


def _cures(settings: Settings, best: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield settings that may help, the step last; more rounds only if none before was better."""
    words, images = dict(settings), settings.of_task(OfImages)
    if "input_shape" in words and images.adapters == images.normalise == "none":
        yield "normalise=channels pixels=unit"
    if words.get("initialisation") == "papers":
        yield "initialisation=he"
    if words.get("max_grad_norm") == NONE:
        yield "max_grad_norm=5"
    if settings.dataset != "none" and settings.partition != "iid" and settings.clients > 1:
        yield ANOTHER_DEAL
    if best is None:
        yield f"rounds={2 * settings.rounds}"
    if "lr" in words:
        yield f"lr={settings.local.lr / 3:.1g}"


def _returns(settings: Settings, best: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield settings that end at a lower NLL, each as on a command line."""
    words = dict(settings)
    if damping := words.get("damping"):
        yield f"damping={damping / 2:.2g}"
    if may_keep_best(settings, NLL):
        yield f"keep_best={NLL}"
    if best is not None:
        yield f"rounds={best[ROUND]}"
    if words.get("calibrate") == NONE:
        yield "calibrate=temperature"


def _remedies(settings: Settings, best: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield settings that may catch up with a linear model, the step last."""
    words, lr = dict(settings), settings.local.lr
    if "lr" not in words:
        yield "another method (fedbary explain lists them)"
        return
    if settings.model != "linear":
        yield "model=linear bayesian_layers=1" if "input_shape" in words else "model=linear"
    if best is None:
        yield f"rounds={2 * settings.rounds}"
        yield f"lr={3 * lr:.1g}"
    yield f"lr={lr / 3:.1g}"
