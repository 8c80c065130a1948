"""The end of all that a command has started, however the command ends.

`start` marks each program in its environment, which all its children inherit, Ray's too. The first
`start` also starts a watcher: `python -m fedbary.launching.watcher FD MARK` reads a pipe whose
other end this process holds. The pipe ends when this process does; the watcher then kills all
marked processes, and removes the temporary folders that the pipe named. It has no parent and a
session of its own, so a signal that kills the command does not reach it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import psutil

MARK_VARIABLE = "FEDBARY_STARTED_BY"
"""Environment variable of all that a command has started: its mark."""

PREFIX = "fedbary-"
"""The beginning of the names of temporary folders."""

_END = b"\0"

KILLING_SECONDS = 10.0
"""Seconds to look for marked processes again: one may start another while it is killed."""


def start(
    command: list[str], environment: Mapping[str, str] | None = None, **how: Any
) -> subprocess.Popen[bytes]:
    """Start a program that ends with this process; `environment` is by default this one's."""
    given = os.environ if environment is None else environment
    return subprocess.Popen(command, env={**given, **marking()}, **how)


def marking() -> dict[str, str]:
    """Return the variable by which what this process starts ends with it."""
    return {MARK_VARIABLE: _watched(os.getpid())[0]}


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a new folder, as `folder_of_process` makes it, and remove it at the end."""
    folder = folder_of_process()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def folder_of_process() -> Path:
    """Return a new folder that its owner alone may read; it is gone once this process has ended."""
    _, pipe = _watched(os.getpid())
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    os.write(pipe, os.fsencode(folder) + _END)
    return folder


@cache
def _watched(pid: int) -> tuple[str, int]:
    """Start the watcher of a process, this one; return its mark, and the end of its pipe."""
    mark = f"{pid}-{uuid.uuid4().hex}"
    ended, held = os.pipe()
    try:
        subprocess.run(
            [sys.executable, "-m", "fedbary.launching.watcher", str(ended), mark],
            cwd=Path(__file__).parents[2],
            env={name: value for name, value in os.environ.items() if name != MARK_VARIABLE},
            stdin=subprocess.DEVNULL,
            pass_fds=[ended],
            check=True,
        )
    finally:
        os.close(ended)
    os.set_inheritable(held, False)
    return mark, held


def marked(mark: str) -> list[psutil.Process]:
    """Return the processes that a command has started, and their children."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get(MARK_VARIABLE) == mark:
                found.append(process)
    return found


def kill_marked(mark: str) -> None:
    """Kill the processes that a command has started, until none is left."""
    deadline = time.monotonic() + KILLING_SECONDS
    while (found := marked(mark)) and time.monotonic() < deadline:
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(found, 1)


def main() -> None:
    """Leave the process that started this one, and wait for its end."""
    ended, mark = int(sys.argv[1]), sys.argv[2]
    if os.fork():
        return
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for output in range(3):
        os.dup2(nothing, output)
    os.closerange(3, ended)
    os.closerange(ended + 1, os.sysconf("SC_OPEN_MAX"))
    named = b""
    while content := os.read(ended, 4096):
        named += content
    kill_marked(mark)
    for folder in named.split(_END)[:-1]:
        shutil.rmtree(os.fsdecode(folder), ignore_errors=True)
    os._exit(0)


if __name__ == "__main__":
    main()
