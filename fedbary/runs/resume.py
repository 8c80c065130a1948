"""The choice between resuming a folder's run, from which checkpoint, and beginning one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from fedbary.errors import SettingError
from fedbary.runs.checkpoints import Checkpoint, fingerprint, has_checkpoint, load_checkpoint
from fedbary.runs.location import (
    DEFENCES,
    METRICS,
    POSTERIOR,
    SETTINGS,
    changed_settings,
    is_deployed,
    metrics_lines,
    only_writer,
    read_settings,
    require_free,
    require_startable,
)
from fedbary.runs.own_code import VALIDATED, require_trusted
from fedbary.runs.provenance import is_made_alike, write_settings
from fedbary.runs.schema import SKIPPED
from fedbary.runs.sites import left_out_sites
from fedbary.settings.config import Settings, read_yaml, validated


def checkpoint_to_resume(folder: Path, settings: Settings) -> Checkpoint | None:
    """Return the checkpoint that a run in the folder goes on from; None for one that begins.

    `resume=last` begins if there is no checkpoint yet, so that the same command restarts a run that
    was killed at any moment.

    Raises
    ------
    SettingError
        If the run may not begin or go on, see `require_startable`; or its checkpoint or metrics are
        missing, damaged or another run's.
    """
    require_startable(folder, settings)
    if settings.resume == "none":
        return None
    if settings.resume == "last" and not has_checkpoint(folder):
        if len(metrics_lines(folder)) > 1:
            raise SettingError("output", str(folder), "a run that kept checkpoints; this has none")
        return None
    earlier = [made["rounds"] for made in rounds_before(folder)]
    return sound_checkpoint(folder, settings, [read_settings(folder)["rounds"], *earlier])


def sound_checkpoint(folder: Path, settings: Settings, earlier: Collection[int]) -> Checkpoint:
    """Return the checkpoint that `resume` names, if it and the metrics up to it are this run's.

    A run with other settings is another run. Exceptions are numbers of rounds that it had
    `earlier`, and defences that it had.
    """
    checkpoint = load_checkpoint(folder, settings.resume)
    lengths = [settings.rounds, *earlier]
    if checkpoint.settings not in [
        fingerprint({**settings.model_dump(), **defences, "rounds": rounds})
        for rounds in lengths
        for defences in earlier_defences(folder)
    ]:
        raise SettingError("checkpoint", str(folder), "checkpoints of this run, not of another")
    lines_until(folder, checkpoint)
    return checkpoint


def rounds_before(folder: Path) -> list[dict[str, int]]:
    """Return a run's `rounds` before it was given more, and the `round` after which it was."""
    found: list[dict[str, int]] = read_yaml(folder / SETTINGS).get("rounds_before", [])
    return found


def earlier_defences(folder: Path) -> list[dict[str, Any]]:
    """Return a run's `DEFENCES`, and before them those that it had before each change."""
    content = read_yaml(folder / SETTINGS)
    found = [{n: value for n, value in content["settings"].items() if n in DEFENCES}]
    for note in reversed(content.get("resumed", [])):
        found += [{**found[-1], **note["changed"]}] if "changed" in note else []
    return found[::-1]


def is_changed(folder: Path) -> bool:
    """Return whether a run has changed on its way: its rounds, defences or sites."""
    changed = len(earlier_defences(folder)) > 1 or left_out_sites(folder)
    return bool(changed or rounds_before(folder))


def resumable(folder: Path, settings: Settings) -> Settings | None:
    """Return settings that go on with the run that a folder holds; None if none can.

    The run must have these settings and be made by this code. It goes on from its last checkpoint,
    or from the one before if the last or its round's metrics are damaged. A run does not go on if
    its last round was skipped: the cause may be gone, but the skipped rounds are lost. Nor does a
    run that has changed on its way: its first rounds were another run's.
    """
    try:
        if not is_made_alike(read_yaml(folder / SETTINGS), settings) or _ends_skipped(folder):
            return None
        if changed_settings(folder, settings) or is_changed(folder):
            return None
    except (SettingError, OSError, ValueError, TypeError, AttributeError):
        return None
    for which in ("last", "previous"):
        again = settings.model_copy(update={"resume": which})
        try:
            return again if checkpoint_to_resume(folder, again) else None
        except (SettingError, OSError):
            continue
    return None


def way_back(folder: Path, settings: Settings, number: int) -> str:
    """Return the command that goes on from the checkpoint before a round, in another way."""
    deployed = is_deployed(folder)
    words = ["the run's command with", f"output={folder}", f"resume={number - 1}"]
    if not deployed:
        words = ["fedbary", "resume", str(folder), f"--round {number - 1}"]
    ways = ["without a site's SuperNode" if deployed else "--without SITE"]
    if dict(settings).get("clipping") is False:
        ways = ["clipping=true", *ways]
    return f"{' '.join(words)} and {' or '.join(ways)}"


def require_ended(folder: Path) -> None:
    """Raise an error unless a folder holds a whole run.

    Raises
    ------
    SettingError
        If there is no such folder, or it lacks a run's files; the message names them, and how to go
        on if the run can.
    RunError
        If the run is going on.
    """
    if not folder.is_dir():
        raise SettingError("run", str(folder), "the folder of a run; there is none of this name")
    needed = (SETTINGS, METRICS, POSTERIOR)
    if missing := [name for name in needed if not (folder / name).is_file()]:
        require_free(folder)
        allowed = f"the folder of a run that has ended; this one lacks {', '.join(missing)}"
        if _can_go_on(folder):
            begun = "the command that began it, with resume=last,"
            command = begun if is_deployed(folder) else f"fedbary resume {folder}"
            allowed += f"; {command} goes on with it"
        raise SettingError("run", str(folder), allowed)


def _can_go_on(folder: Path) -> bool:
    try:
        made = read_settings(folder)
        require_trusted({name: made.get(name) for name in VALIDATED}, folder, own_code=False)
        settings = validated({**made, "resume": "last"})
        return checkpoint_to_resume(folder, settings) is not None
    except SettingError:
        return False


def lines_until(folder: Path, checkpoint: Checkpoint) -> list[bytes]:
    """Return the lines of metrics.jsonl that were written before a checkpoint."""
    lines = metrics_lines(folder)[: checkpoint.round + 1]
    if hashlib.sha256(b"".join(lines)).hexdigest() != checkpoint.metrics:
        allowed = f"the file as this run wrote it, with the rounds 0 to {checkpoint.round}"
        raise SettingError("resume", str(folder / METRICS), allowed)
    return lines


def _ends_skipped(folder: Path) -> bool:
    """Return whether the last whole line of a run's metrics is a skipped round's."""
    lines = [line for line in metrics_lines(folder) if line.endswith(b"\n")]
    return bool(lines) and bool(json.loads(lines[-1]).get(SKIPPED, False))


def lengthen(folder: Path, settings: Settings) -> None:
    """Give a run, whole or cut off, as many rounds as the settings say.

    Its settings.yaml notes under `rounds_before` its old number of rounds, and the round after
    which it got more. The run then counts as unfinished and goes on from its checkpoint. If the
    process is killed, the run is as it was, or unfinished with its old or new number of rounds.

    Parameters
    ----------
    folder
        The run's.
    settings
        The run's, with more rounds and with `resume`.

    Raises
    ------
    SettingError
        If these are no more rounds, there is no sound checkpoint to go on from, or the run repeats
        another.
    RunError
        If another process is writing to the folder.
    """
    if settings.pace.replays:
        allowed = f"{read_settings(folder)['rounds']}, as in the run that it repeats"
        raise SettingError("rounds", settings.rounds, allowed)
    with only_writer(folder):
        lengthen_locked(folder, settings)


def lengthen_locked(folder: Path, settings: Settings) -> None:
    """Do as `lengthen`, in a process that is the folder's only writer already."""
    content, before = read_yaml(folder / SETTINGS), rounds_before(folder)
    old = content["settings"]["rounds"]
    if settings.rounds <= old:
        raise SettingError("rounds", settings.rounds, f"more than {old}, the run's")
    checkpoint = sound_checkpoint(folder, settings, [old, *(m["rounds"] for m in before)])
    (folder / POSTERIOR).unlink(missing_ok=True)
    content["settings"]["rounds"] = settings.rounds
    content["rounds_before"] = [*before, {"rounds": old, "round": checkpoint.round}]
    write_settings(folder, content)


def earlier_rates(folder: Path, settings: Settings) -> list[str]:
    """Return lines on rounds whose learning rates followed a shorter schedule than now."""
    first, said, lr_in = 1, [], settings.local.lr_in
    for made in rounds_before(folder):
        rounds, last = made["rounds"], made["round"]
        if last >= first and lr_in(last, rounds) != lr_in(last, settings.rounds):
            said.append(
                f"Rounds {first} to {last} had rates from {lr_in(first, rounds):.3g} to "
                f"{lr_in(last, rounds):.3g}, of a schedule of {rounds} rounds; the next "
                f"has {lr_in(last + 1, settings.rounds):.3g}, of one of {settings.rounds}"
            )
        first = last + 1
    return said
