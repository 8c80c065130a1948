"""Start a simulated federation: in one process, or on Ray."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import IO

import yaml

from fedbary.data.forms import source_of
from fedbary.data.paths import user_path
from fedbary.data.unchanged import one_state
from fedbary.errors import SettingError
from fedbary.launching.environment import flower_environment
from fedbary.launching.programs import failure
from fedbary.launching.simulation import PROGRAMS, Simulate
from fedbary.launching.warm import run_warm
from fedbary.launching.watcher import temporary_folder
from fedbary.parts.registry import data_sets
from fedbary.runs.location import is_whole, require_startable
from fedbary.runs.lock import require_free
from fedbary.settings.config import Settings
from fedbary.settings.model import data_task

__all__ = ["flower_environment", "launch", "located", "prepare"]

DATA = ("dataset", "test_dataset", "ood_dataset")
"""Settings that name data sets."""

MAY_BE_PATHS = (*DATA, "backbone", "backbone_weights", "speeds")
"""Settings that may hold the path of a file."""


def launch(
    settings: Settings,
    log: IO[str] | None = None,
    simulate: Simulate | None = None,
) -> None:
    """Run a simulation to its end; the results lie in the folder `output`.

    Parameters
    ----------
    settings
        The run's settings; paths in them are absolute.
    log
        File of the run's own lines; `engine=inline` then runs in a fork, see `run_warm`. None: the
        lines go to this process's output.
    simulate
        Program of the settings' engine, see `PROGRAMS`; None: one that is started now.

    Raises
    ------
    RunError
        If the run ends without a whole result; `Killed` if its program was killed.
    """
    is_inline = settings.engine == "inline"
    if is_inline and log is not None and simulate is None:
        code = _in_a_fork(settings, log)
    else:
        with nullcontext(simulate) if simulate else PROGRAMS[settings.engine](log) as run:
            code = run(settings)
    if (is_inline and code) or not is_whole(Path(settings.output)):
        raise failure(code)


def located(settings: Settings, folder: Path) -> Settings:
    """Return settings of a run in a folder, with absolute paths."""
    paths = [name for name in MAY_BE_PATHS if hasattr(settings, name)]
    return settings.model_copy(
        update={
            "output": str(folder),
            "data_dir": str(user_path(settings.data_dir).resolve()),
            **{name: source_of(getattr(settings, name)).located() for name in paths},
            "start_from": _folder(settings.start_from),
        }
    )


def prepare(settings: Settings, folder: Path, own_data: bool = False) -> Settings:
    """Find mistakes before the start; return settings with absolute paths.

    Data sets are loaded here, and so downloaded once, before several clients would. With `own_data`
    at the sites the data set is not dealt to them.

    Raises
    ------
    SettingError
        If the folder exists, or does not hold what is to be resumed, or the device, the data or
        the split cannot be had.
    RunError
        If another process is writing to the folder.
    """
    prepared = located(settings, folder)
    for setting in DATA:
        _require_file(setting, prepared)
    require_startable(folder, prepared)
    require_free(folder)
    from fedbary.methods import require_method
    from fedbary.runs.resume import checkpoint_to_resume, require_ended
    from fedbary.runs.tracking import tracker_class
    from fedbary.tasks import task_of

    require_method(settings)
    if settings.tracker != "none":
        tracker_class(settings.tracker)
    task = task_of(settings)
    with one_state(), warnings.catch_warnings(action="ignore"):  # the run's process warns
        task.check(own_data)
        if checkpoint_to_resume(folder, prepared):
            task.require_same_data(folder)
        elif prepared.start_from != "none":
            require_ended(Path(prepared.start_from))
    return prepared


def _folder(run: str) -> str:
    return run if run == "none" else str(user_path(run).resolve())


def _require_file(setting: str, settings: Settings) -> None:
    """Raise a SettingError if a data set is neither a known name nor a path."""
    name = getattr(settings, setting, "none")
    known, _ = data_sets(data_task(setting, settings.task))
    source = source_of(name)
    if name in ("none", *known) or source.is_elsewhere:
        return
    if not source.path(settings.data_dir).exists():
        raise SettingError(setting, name, f"{', '.join(known)}, or the path of data")


def _in_a_fork(settings: Settings, log: IO[str]) -> int:
    with temporary_folder() as scratch:
        file = scratch / "settings.yaml"
        file.write_text(yaml.safe_dump(settings.model_dump()), encoding="utf-8")
        return run_warm(file, log)
