"""Programs: their start, their end, and the end of all that they have started."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import psutil

from fedbary.errors import RunError
from fedbary.launching.app import app_folder
from fedbary.launching.watcher import start
from fedbary.runs.progress import PROGRESS_VARIABLE

STOP_SECONDS = 15
LAST_LINES_SECONDS = 1.5
POLL_SECONDS = 0.2


def run_program(
    command: list[str],
    environment: Mapping[str, str] | None,
    log: IO[str] | None,
    is_over: Callable[[], bool] | None = None,
) -> int:
    """Run a program beside the apps to its end, or until it `is_over`; return its exit code.

    Without a log its lines go to this process's output, except those that Flower and Ray print in
    every run. If its environment names a file for its progress, a bar shows the round. A Ctrl-C in
    the terminal reaches this process alone, which kills the program.
    """
    return followed(started(command, environment, log), environment, log, is_over)


def started(
    command: list[str], environment: Mapping[str, str] | None, log: IO[str] | None, **how: Any
) -> subprocess.Popen[bytes]:
    """Start a program beside the apps, whose lines `followed` passes on."""
    output = subprocess.PIPE if log is None else log
    errors = subprocess.STDOUT if PROGRESS_VARIABLE in (environment or {}) else output
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        return start(command, environment, cwd=app_folder(), stdout=output, stderr=errors, **how)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def followed(
    process: subprocess.Popen[bytes],
    environment: Mapping[str, str] | None,
    log: IO[str] | None,
    is_over: Callable[[], bool] | None = None,
) -> int:
    """Follow a program that `started` to its end, or until it `is_over`, as `run_program` does."""
    file = (environment or {}).get(PROGRESS_VARIABLE)
    if is_over is not None:
        threading.Thread(target=_end_once, args=[process, is_over], daemon=True).start()
    try:
        if log is not None:
            return process.wait()
        from fedbary.launching.launch import show_lines, show_rounds

        return show_rounds(process, Path(file)) if file else show_lines(process)
    finally:
        process.kill()
        process.wait()


class Killed(RunError):
    """A run's program was killed from outside."""


def failure(code: int, what: str = "run") -> RunError:
    """Return the error of a run, or a look, that ended without a result, by its exit code."""
    if code < 0:
        return Killed(f"signal {-code} killed the {what}, as the system does where memory runs out")
    return RunError(f"the {what} ended without a result; the messages above say why")


def _end_once(process: subprocess.Popen[bytes], is_over: Callable[[], bool]) -> None:
    """End a program that is over, after a moment for its last lines."""
    while process.poll() is None:
        if is_over():
            with suppress(subprocess.TimeoutExpired):
                process.wait(LAST_LINES_SECONDS)
            process.kill()
            return
        time.sleep(POLL_SECONDS)


def stop(processes: list[psutil.Process], seconds: float = STOP_SECONDS) -> None:
    """End processes: ask them first, and kill those that are still there after some seconds."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    _, alive = psutil.wait_procs(processes, seconds)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def stop_tree(process: subprocess.Popen[bytes], seconds: float = STOP_SECONDS) -> None:
    """End a server and all that it started, Ray too, even if the server itself has ended.

    It must have been started in a session of its own.
    """
    started = [other for other in psutil.process_iter() if _session(other) == process.pid]
    with suppress(psutil.NoSuchProcess):
        started += psutil.Process(process.pid).children(recursive=True)
    if process.poll() is None:
        process.terminate()
    stop([other for other in started if other.pid != process.pid], seconds)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _session(process: psutil.Process) -> int | None:
    try:
        return os.getsid(process.pid)
    except OSError:
        return None


def tool(name: str) -> str:
    """Return the path of a command of this Python's environment."""
    return str(Path(sys.executable).parent / name)


def free_port() -> int:
    """Return a port of the loopback interface that nothing uses."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
