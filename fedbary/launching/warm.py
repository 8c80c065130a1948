"""Simulations in forks of a process that has imported the apps: `multiprocessing`'s forkserver."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO
from unittest.mock import patch

import psutil

from fedbary.errors import RunError
from fedbary.launching.app import app_folder
from fedbary.launching.watcher import marking

_CONTEXT = multiprocessing.get_context("forkserver")
_STARTING = threading.Lock()

_WITHOUT_ITS_PARENT = 255
"""Exit code that `multiprocessing` tells of a process if the one that forks has died."""

END_SECONDS = 10.0
"""Seconds to wait for the end of a killed run, which holds the lock of its folder."""


class Lost(RunError):
    """The process that makes runs was killed, by a person or for its memory."""


def run_warm(file: Path, log: IO[str]) -> int:
    """Run a settings file in a fork, its lines to `log`; return its exit code.

    Importing PyTorch and Flower takes seconds, forking milliseconds. The process that forks starts
    with the first run, and ends with this process.

    Raises
    ------
    Lost
        If the process that forks was killed; the run has been ended too, and the next call starts
        another.
    """
    where = str(app_folder())
    run = _CONTEXT.Process(target=_run, args=[str(file), log.name, where], daemon=True)
    with _STARTING, patch.dict(os.environ, marking()):
        paths = filter(None, [where, os.environ.get("PYTHONPATH")])
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
        os.environ["PYTHONSAFEPATH"] = "1"  # the folder of the command may hold other apps
        _CONTEXT.set_forkserver_preload(["fedbary.server_app.engine.warm"])
        run.start()
    run.join()
    if run.exitcode == _WITHOUT_ITS_PARENT:
        with suppress(psutil.NoSuchProcess):
            orphan = psutil.Process(run.pid)
            orphan.kill()
            orphan.wait(END_SECONDS)
        raise Lost("the process that makes the runs was killed")
    return run.exitcode or 0


def _run(file: str, log: str, where: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    with open(log, "ab") as output:
        for stream in (1, 2):
            os.dup2(output.fileno(), stream)
    sys.path.insert(0, where)
    sys.argv[1:] = [file]
    runpy.run_module("fedbary.server_app.engine.inline", run_name="__main__")
