"""A simulation in a program of its own: Flower's engine on Ray, or one process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO

import yaml

from fedbary.launching.environment import flower_environment, progress_in, ray_folder
from fedbary.launching.programs import followed, started, stop_tree
from fedbary.launching.watcher import temporary_folder
from fedbary.runs.location import is_left_whole
from fedbary.settings.config import Settings

Simulate = Callable[[Settings], int]
"""Runs the apps with settings to their end, whatever that is; returns the program's exit code."""


@contextmanager
def on_ray(log: IO[str] | None = None) -> Iterator[Simulate]:
    """Start the program of a simulation on Ray; stop it, and Ray with it, at the end.

    It imports PyTorch, starts Ray, and waits for the settings of its one run. The command checks
    them meanwhile. Output to `log` shows no progress bar.
    """
    with temporary_folder() as home:
        environment = {**flower_environment(home), **ray_folder(), **progress_in(home, log)}
        command = [sys.executable, "-m", "fedbary.server_app.engine.on_ray"]
        how = {"stdin": subprocess.PIPE, "start_new_session": True}
        process = started(command, environment, log, **how)

        def simulate(settings: Settings) -> int:
            file, output = home / "settings.yaml", Path(settings.output)
            file.write_text(yaml.safe_dump(settings.model_dump()), encoding="utf-8")
            assert process.stdin is not None
            with suppress(BrokenPipeError), process.stdin as words:
                words.write(f"{file}\n".encode())
            return followed(process, environment, log, lambda: is_left_whole(output))

        with process:
            try:
                yield simulate
            finally:
                stop_tree(process, seconds=0)


@contextmanager
def inline(log: IO[str] | None = None) -> Iterator[Simulate]:
    """Start the program of a simulation in one process; kill it at the end.

    It imports PyTorch and reads the settings from a pipe, which holds them at once. Its standard
    input is this process's, for breakpoints.
    """
    with temporary_folder() as scratch:
        environment = {**os.environ, **progress_in(scratch, log)}
        read, write = os.pipe()
        command = [sys.executable, "-m", "fedbary.server_app.engine.inline", f"/dev/fd/{read}"]
        process = started(command, environment, log, pass_fds=[read])
        os.close(read)

        def simulate(settings: Settings) -> int:
            with suppress(BrokenPipeError), words:
                words.write(yaml.safe_dump(settings.model_dump()))
            return followed(process, environment, log)

        with process, open(write, "w", encoding="utf-8") as words:
            try:
                yield simulate
            finally:
                process.kill()


PROGRAMS: Mapping[str, Callable[..., AbstractContextManager[Simulate]]] = {
    "inline": inline,
    "ray": on_ray,
}
"""Programs by their engine; each waits for the settings of one run."""
