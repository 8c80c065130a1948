"""Start a simulated federation: in one process, or on Ray."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any

import yaml
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from fedbary.data.forms import one_state, source_of, user_path
from fedbary.errors import SettingError
from fedbary.launching.programs import failure
from fedbary.launching.simulation import PROGRAMS, Simulate
from fedbary.launching.warm import run_warm
from fedbary.launching.watcher import temporary_folder
from fedbary.parts.registry import dataset_names_and_endings
from fedbary.runs.location import is_whole, require_free, require_startable
from fedbary.runs.progress import Progress as Round
from fedbary.runs.progress import duration
from fedbary.settings.config import Settings
from fedbary.settings.model import data_task

POLL_SECONDS = 0.2
ALL_SECONDS = 1e9
"""The bar's speed is that since its start."""

LAST_SECONDS = 5.0
"""Seconds to wait for the last lines of a program that has ended."""

OF_FLOWER = (
    "Flower configuration not found",
    "Using SuperLink:",
    "Successfully started run",
    "Starting logstream",
    "Starting Flower Simulation",
    "default simulated SuperNodes changed",
    "simulated SuperNodes)",
    "To change federation size",
    "flwr federation simulation-config",
    "Successfully installed fedbary",
    "Manually terminating ClientAppActor",
    "(raylet",
    "metrics exporter agent",
    "Tip: In future versions of Ray",
)
"""Lines that Flower and Ray print in every simulation, and that its user need not know."""


@contextmanager
def progress_bar(console: Console, transient: bool = False) -> Iterator[Progress]:
    """Show a bar that moves only when told to; a transient one disappears at the end."""
    columns: tuple[Any, ...] = (
        BarColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with Progress(
        *columns,
        console=console,
        auto_refresh=False,
        transient=transient,
        speed_estimate_period=ALL_SECONDS,
    ) as progress:
        yield progress


def show_rounds(process: subprocess.Popen[bytes], file: Path) -> int:
    """Print a program's lines, without those of `OF_FLOWER`, above a bar of its running round.

    It returns the program's exit code.

    Parameters
    ----------
    process
        Its output is piped.
    file
        File of its server's progress.
    """
    console = Console()
    with progress_bar(console, transient=True) as bar:
        task = bar.add_task("", total=1.0, left="", visible=False)
        reader = threading.Thread(target=_print_lines, args=[process, console], daemon=True)
        reader.start()
        first: tuple[float, float] | None = None
        while process.poll() is None:
            time.sleep(POLL_SECONDS)
            if (now := Round.read(file)) is None:
                continue
            then, part = first = first or (time.monotonic(), now.part)
            pace = (time.monotonic() - then) / (now.part - part) if now.part > part else None
            left = "" if pace is None else f"about {duration(pace * (1 - now.part))} left"
            bar.update(
                task,
                completed=now.answered,
                total=now.asked,
                description=f"round {now.round}/{now.rounds}  {now.doing} "
                f"{now.answered} of {now.asked} clients",
                left=left,
                visible=True,
                refresh=True,
            )
        reader.join()
    return process.returncode


def show_lines(process: subprocess.Popen[bytes]) -> int:
    """Pass a program's lines on, without those of `OF_FLOWER`; return its exit code."""
    streams = ((process.stdout, sys.stdout), (process.stderr, sys.stderr))
    readers = [threading.Thread(target=_pass_on, args=pair, daemon=True) for pair in streams]
    for reader in readers:
        reader.start()
    code = process.wait()
    for reader in readers:
        reader.join(LAST_SECONDS)
    return code


def _pass_on(source: IO[bytes], target: IO[str]) -> None:
    with source:
        for line in source:
            text = line.decode(errors="replace")
            if _is_ours(text):
                target.write(text)
                target.flush()


def _is_ours(line: str) -> bool:
    return bool(line.strip()) and not any(words in line for words in OF_FLOWER)


def _print_lines(process: subprocess.Popen[bytes], console: Console) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        text = Text.from_ansi(line.decode(errors="replace").rstrip("\r\n"))
        if _is_ours(text.plain):
            console.print(text, soft_wrap=True)


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
    words = dict(settings)
    return settings.model_copy(
        update={
            "output": str(folder),
            "data_dir": str(user_path(settings.data_dir).resolve()),
            **{name: source_of(words[name]).located() for name in MAY_BE_PATHS if name in words},
            "start_from": _folder(settings.start_from),
        }
    )


def validate_run(settings: Settings, folder: Path, own_data: bool = False) -> Settings:
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
        require_file(setting, prepared)
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


def require_file(setting: str, settings: Settings) -> None:
    """Raise a SettingError if a data set is neither a known name nor a path."""
    name = dict(settings).get(setting, "none")
    known, _ = dataset_names_and_endings(data_task(setting, settings.task))
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
