"""Runs that fail to learn, or learn less than a linear model: the first such round, and remedies.

A round's line names a fault of its model in `failing`, see `fedbary.tasks._failing`, and the lead
of a linear model in `behind`, see `fedbary.tasks._linear`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedbary.runs.schema import BEHIND, FAILING
from fedbary.settings.config import Settings

PATIENCE = 3
"""Rounds in a row that are not yet reported as failing: every run begins with nothing learned."""

LASTING = 2
"""Rounds in a row of the second half behind a linear model that are reported."""


def advised(line: Mapping[str, Any], settings: Settings) -> Mapping[str, Any]:
    """Return a round's line, with remedies if it names a fault."""
    cures = {FAILING: _cures, BEHIND: _remedies}
    for word in _words(line):
        line = {**line, word: f"{line[word]}. Try {', or '.join(cures[word](settings))}"}
    return line


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
    behind = [BEHIND in line for line in rounds[max(1, -(-planned // 2)) :]]
    if _begins(failing, PATIENCE):
        return f"Nothing learned in {PATIENCE} rounds: {rounds[-1][FAILING]}"
    if _begins(behind, LASTING):
        return f"Behind a linear model: {rounds[-1][BEHIND]}"
    if _ends(failing, PATIENCE):
        return "The model has begun to learn"
    return "The model is no longer far behind a linear one" if _ends(behind, LASTING) else ""


def verdict(line: Mapping[str, Any]) -> str:
    """Return a verdict on a result that has not learned, or too little; "" for others."""
    said = {FAILING: "The model has not learned", BEHIND: "The model is behind a linear one"}
    return " ".join(f"{said[word]}: {line[word]}" for word in _words(line))


def _words(line: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys under which a line names a fault; a model that fails is also behind."""
    yield from [word for word in (FAILING, BEHIND) if word in line][:1]


def _begins(spell: Sequence[bool], patience: int) -> bool:
    return _lasts(spell, patience) and not _lasts(spell[:-1], patience)


def _ends(spell: Sequence[bool], patience: int) -> bool:
    return _lasts(spell[:-1], patience) and not _lasts(spell, patience)


def _lasts(spell: Sequence[bool], patience: int) -> bool:
    return len(spell) >= patience and all(spell[-patience:])


def _cures(settings: Settings) -> Iterator[str]:
    """Yield settings that may help, each as on a command line."""
    if hasattr(settings, "lr"):
        yield f"lr={settings.lr / 3:.1g}"
    sees_pixels = getattr(settings, "adapters", "none") == "none"
    pixels_as_are = getattr(settings, "normalise", "") == "none" and sees_pixels
    if settings.task == "classification" and pixels_as_are:
        yield "normalise=channels pixels=unit"
    if getattr(settings, "initialisation", "he") == "papers":
        yield "initialisation=he"
    if getattr(settings, "max_grad_norm", 0) == "none":
        yield "max_grad_norm=5"
    if settings.dataset != "none" and settings.partition != "iid" and settings.clients > 1:
        yield "partition=iid"
    yield f"rounds={2 * settings.rounds}"


def _remedies(settings: Settings) -> Iterator[str]:
    """Yield settings that may catch up with a linear model, each as on a command line."""
    lr = getattr(settings, "lr", None)
    if lr is None:
        yield "another method (fedbary explain lists them)"
        return
    yield f"rounds={2 * settings.rounds}"
    yield f"lr={3 * lr:.1g}"
    yield f"lr={lr / 3:.1g}"
    if settings.model != "linear":
        images = settings.task == "classification"
        yield "model=linear bayesian_layers=1" if images else "model=linear"
