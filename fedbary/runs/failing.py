"""Runs that fail to learn: since when, and what to try.

The line of a round says by `failing` what is wrong with its model, see `fedbary.tasks._failing`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedbary.runs.schema import FAILING
from fedbary.settings.config import Settings

PATIENCE = 3
"""So many rounds in a row are not yet called failing: every run begins with nothing learned."""


def advised(line: Mapping[str, Any], settings: Settings) -> Mapping[str, Any]:
    """Return the line of a round with what to try, where it says that something is wrong."""
    if FAILING not in line:
        return line
    return {**line, FAILING: f"{line[FAILING]}. Try {', or '.join(_cures(settings))}"}


def turn(rounds: Sequence[Mapping[str, Any]]) -> str:
    """Return what the log says after the last of these rounds; "" where nothing has changed.

    Parameters
    ----------
    rounds
        Lines of metrics.jsonl, from that of round 0.
    """
    failing = [FAILING in line for line in rounds[1:]]
    before, now = _lasts(failing[:-1]), _lasts(failing)
    if now and not before:
        return f"Nothing learned in {PATIENCE} rounds: {rounds[-1][FAILING]}"
    return "The model has begun to learn" if before and not now else ""


def verdict(line: Mapping[str, Any]) -> str:
    """Return what is to be said of a result that has not learned; "" of others."""
    return f"The model has not learned: {line[FAILING]}" if FAILING in line else ""


def _lasts(failing: Sequence[bool]) -> bool:
    return len(failing) >= PATIENCE and all(failing[-PATIENCE:])


def _cures(settings: Settings) -> Iterator[str]:
    """Yield settings that may help, each as on a command line."""
    if hasattr(settings, "lr"):
        yield f"lr={settings.lr / 3:.1g}"
    if settings.task == "classification" and getattr(settings, "normalise", "") == "none":
        yield "normalise=channels pixels=unit"
    if getattr(settings, "initialisation", "he") == "papers":
        yield "initialisation=he"
    if getattr(settings, "max_grad_norm", 0) == "none":
        yield "max_grad_norm=5"
    if settings.dataset != "none" and settings.partition != "iid" and settings.clients > 1:
        yield "partition=iid"
    yield f"rounds={2 * settings.rounds}"
