"""The journal of a run without rounds, by which another run repeats it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from fedbary.data.forms import user_path
from fedbary.errors import RunError, SettingError
from fedbary.parts.parameters import parameters_of
from fedbary.runs.checkpoints import has_checkpoint, load_checkpoint
from fedbary.runs.location import POSTERIOR, read_rounds, read_settings
from fedbary.runs.resume import earlier_rates, lines_until
from fedbary.runs.schema import JOURNAL
from fedbary.settings.config import Settings
from fedbary.settings.modes import Asynchronous

REPLIED, FAILED, LOST = "replied", "failed", "lost"
"""Ends of a question: a reply, an error in its place, or nothing in time."""


def checked(journal: Iterable[Any]) -> list[Mapping[str, Any]]:
    """Return the rows of a journal: `site`, `round`, `asked`, `arrived`, `end`.

    Raises
    ------
    SettingError
        If a row is another's, or two are of one question.
    """
    rows = list(journal) if isinstance(journal, Iterable) else [journal]
    if strange := [row for row in rows if not _is_row(row)]:
        allowed = "rows with site, round, asked, arrived and end, as a strategy's journal has"
        raise SettingError("journal", strange[0], allowed)
    questions = [(row["site"], row["round"], row["asked"]) for row in rows]
    if len(set(questions)) < len(questions):
        twice = next(each for each in questions if questions.count(each) > 1)
        raise SettingError("journal", twice, "each question once")
    return rows


def _is_row(row: Any) -> bool:
    return (
        isinstance(row, Mapping)
        and isinstance(row.get("site"), str)
        and isinstance(row.get("round"), int)
        and all(
            isinstance(row.get(when), Real) and 0 <= row[when] < math.inf
            for when in ("asked", "arrived")
        )
        and row.get("end") in (REPLIED, FAILED, LOST)
    )


def require_repeated(run: Path, replayed: Path) -> None:
    """Raise a RunError if a replay did not end at the posterior of its run, bit for bit."""
    wanted, found = (load_file(folder / POSTERIOR) for folder in (run, replayed))
    if wanted.keys() != found.keys():
        raise RunError(f"{replayed} has other tensors than {run}, which it repeats")
    other = [name for name in sorted(wanted) if not torch.equal(wanted[name], found[name])]
    if other:
        apart = max(
            float((wanted[name].double() - found[name].double()).abs().max()) for name in other
        )
        raise RunError(
            f"{replayed} has not the posterior of {run}: numbers of {other[0]} and of "
            f"{len(other) - 1} other tensors differ by up to {apart:.2g}; another processor or "
            "version rounds otherwise, and an edited journal makes another run"
        )


def journal_of(settings: Settings) -> list[Mapping[str, Any]]:
    """Return the ends of all questions of the run whose metrics.jsonl the settings name.

    Raises
    ------
    SettingError
        If the file cannot be read, or is that of a run with rounds, of one that `fedbary forget`
        wrote, of one whose first learning rates were those of fewer rounds, or of one with fewer
        aggregates, or with another number of clients at work or of replies to an aggregate. Or if
        it is not as the run wrote it, which the digest in the run's checkpoint says.
    """
    path = settings.pace.speeds
    folder = user_path(path).parent
    rounds = read_rounds(folder)
    if any(JOURNAL not in line for line in rounds[1:]) or not rounds:
        allowed = f"the metrics of a run with mode=async, each aggregate with its {JOURNAL}"
        raise SettingError("speeds", path, allowed)
    repeated, mine = read_settings(folder), settings.pace
    theirs = parameters_of(Asynchronous, repeated)
    if settings.rounds > repeated["rounds"]:
        allowed = f"at most {repeated['rounds']}, as the run that it repeats has no more"
        raise SettingError("rounds", settings.rounds, allowed)
    for name in ("concurrency", "buffer"):
        if getattr(theirs, name) != getattr(mine, name):
            allowed = f"{getattr(theirs, name) or 'none'}, as in the run that it repeats"
            raise SettingError(name, getattr(mine, name) or "none", allowed)
    if said := earlier_rates(folder, settings):
        allowed = f"a run whose learning rates followed one schedule. {said[0]}"
        raise SettingError("speeds", path, allowed)
    if has_checkpoint(folder):
        try:
            lines_until(folder, load_checkpoint(folder, "last"))
        except SettingError as error:
            raise SettingError("speeds", error.value, error.allowed) from None
    journals = [line[JOURNAL] for line in rounds[1:]]
    if strange := [each for each in journals if not isinstance(each, list)]:
        raise SettingError("speeds", path, f"lists under {JOURNAL}, not {strange[0]!r}")
    return checked(row for journal in journals for row in journal)
