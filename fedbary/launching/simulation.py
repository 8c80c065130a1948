"""A simulation on Flower's engine, which runs on Ray, in a program of its own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import yaml

from fedbary.launching.environment import flower_environment, progress_in, ray_folder
from fedbary.launching.programs import followed, started, stop_tree
from fedbary.runs.location import is_left_whole
from fedbary.settings.config import Settings

Simulate = Callable[[Settings], int]
"""Runs the apps with settings to their end, whatever that is; returns the program's exit code."""


@contextmanager
def simulation(log: IO[str] | None = None) -> Iterator[Simulate]:
    """Start the program of a simulation; stop it, and Ray with it, at the end.

    It imports PyTorch, starts Ray, and waits for the settings of its one run. The command checks
    them meanwhile. Output to `log` shows no progress bar.
    """
    with tempfile.TemporaryDirectory(prefix="fedbary-") as scratch:
        home = Path(scratch)
        environment = {**flower_environment(home), **ray_folder(), **progress_in(home, log)}
        command = [sys.executable, "-m", "server_app.engine.on_ray"]
        how = {"stdin": subprocess.PIPE, "start_new_session": True}
        process = started(command, environment, log, **how)

        def simulate(settings: Settings) -> int:
            file, output = home / "settings.yaml", Path(settings.output)
            file.write_text(yaml.safe_dump(settings.model_dump()), encoding="utf-8")
            assert process.stdin is not None
            with suppress(BrokenPipeError), process.stdin as words:
                words.write(f"{file}\n".encode())
            return followed(process, environment, log, lambda: is_left_whole(output))

        try:
            yield simulate
        finally:
            stop_tree(process, seconds=0)
