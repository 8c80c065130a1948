"""A run that is given more rounds than it was started with."""

from __future__ import annotations

from pathlib import Path

from fedbary.errors import SettingError
from fedbary.inference import lr_in
from fedbary.runs.location import POSTERIOR, SETTINGS, read_settings
from fedbary.runs.lock import only_writer
from fedbary.runs.provenance import write_settings
from fedbary.runs.resume import rounds_before, sound_checkpoint
from fedbary.settings.config import Settings, read_yaml
from fedbary.settings.modes import replays


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
    if replays(settings):
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
    first, said = 1, []
    for made in rounds_before(folder):
        shorter, last = settings.model_copy(update={"rounds": made["rounds"]}), made["round"]
        if last >= first and lr_in(shorter, last) != lr_in(settings, last):
            said.append(
                f"Rounds {first} to {last} had rates from {lr_in(shorter, first):.3g} to "
                f"{lr_in(shorter, last):.3g}, of a schedule of {made['rounds']} rounds; the next "
                f"has {lr_in(settings, last + 1):.3g}, of one of {settings.rounds}"
            )
        first = last + 1
    return said
