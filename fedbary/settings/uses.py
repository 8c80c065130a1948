"""Settings that a run's parts do not use: naming one of them is an error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from fedbary.errors import SettingError
from fedbary.parts.parameters import NONE, declared
from fedbary.settings.model import Settings
from fedbary.settings.owners import (
    counts_hostile,
    method_kind,
    names,
    owned_by,
    owners,
    task_kind,
    unused_by,
)

FEW = 8
"""The most parts that a message lists as owners of a word."""


def require_used(named: Mapping[str, Any], settings: Settings) -> None:
    """Raise a SettingError for the first of the named settings that the run does not use.

    Parameters
    ----------
    named
        The settings that a person has named, for this run alone, each with its value.
    settings
        The run's.
    """
    require_used_by_some(named, [settings])


def require_used_by_some(named: Mapping[str, Any], runs: Sequence[Settings]) -> None:
    """Raise a SettingError for the first of the named settings that none of the runs uses."""
    unused = [dict(_unused(settings)) for settings in runs]
    for name in named:
        if all(name in without_use for without_use in unused):
            part, uses = unused[0][name]
            value = dict(runs[0]).get(name, named[name])
            others = uses if uses.endswith(" do") else f"it uses {uses}"
            raise SettingError(name, value, f"no value: {part} does not use it; {others}")


def _unused(settings: Settings) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield unused settings, each with the part that ignores it and the settings of that part.

    If a setting comes twice, the later entry says more.
    """
    yield from _of_other_parts(settings)
    task = task_kind(settings.task)
    words = {**dict(settings), **vars(settings.of_task(task.Parameters))}
    method = method_kind(settings.method)
    part = f"method={settings.method}"
    for name in unused_by(method):
        yield name, (part, ", ".join(declared(method)))
    yield from task.unused(settings)
    rule = dict(names(settings))["rule"]
    counts = words.get("mixing") or counts_hostile(rule)
    if "trim_fraction" in declared(method) and not counts:
        part = f"rule={rule}"
        yield "trim_fraction", (part, "max_precision_ratio, max_weight_ratio, server_momentum")
    for name, (setting, value, uses) in getattr(task.Parameters, "IDLE", {}).items():
        if words[setting] == value:
            yield name, (f"{setting}={NONE if value is None else value}", uses)


def _of_other_parts(settings: Settings) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield what parts of each kind own and none of the run's does."""
    yield from _owned_by_others(names(settings)).items()


@cache
def _owned_by_others(chosen: tuple[tuple[str, str], ...]) -> dict[str, tuple[str, str]]:
    own = owned_by(dict(chosen))
    taken = {*Settings.model_fields, *(name for parameters in own.values() for name in parameters)}
    found = {}
    for setting, parts in [*owners().items()][::-1]:  # of a method's words the least is said
        whose: dict[str, list[str]] = {}
        for part, parameters in parts.items():
            for name in parameters.keys() - taken:
                whose.setdefault(name, []).append(f"{setting}={part}")
        for name, others in whose.items():
            if name in found and dict(chosen)[setting] == NONE:
                continue
            used = ", ".join(own[setting])
            said = f"{', '.join(others)} do"
            if used:
                said = f"it uses {used}; {said}" if len(others) <= FEW else used
            found[name] = f"{setting}={dict(chosen)[setting]}", said
    return found
