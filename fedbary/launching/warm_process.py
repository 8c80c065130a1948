"""A process that has imported the apps once, for the many short simulations of a sweep."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from fedbary.errors import RunError
from fedbary.launching.app import app_folder
from fedbary.launching.watcher import start

END_SECONDS = 10.0
"""Seconds to wait for the end of a killed run, which holds the lock of its folder."""


class Lost(RunError):
    """The process that makes runs was killed, by a person or for its memory."""


class WarmProcess:
    """Runs settings files in forks of a process that has imported what they need, one at a time.

    Importing PyTorch and Flower takes seconds, forking milliseconds. The process starts with the
    first run, in a session of its own, and ends with `close`, or with this process.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, file: Path, log: IO[str]) -> bool:
        """Run a settings file, its lines to `log`; return whether it ended well.

        Raises
        ------
        Lost
            If the process was killed; the run at work has been ended too, and the next `run`
            starts another process.
        """
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._start(log)
        try:
            socket.send_fds(self._socket, [os.fsencode(file)], [log.fileno()])
            answer = self._socket.recv(1)
        except ConnectionError:
            answer = b""
        if not answer:
            self._end_what_is_left()
        return answer == b"\0"

    def terminate(self) -> None:
        """Ask the process and the run at work to end."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGTERM)

    def _end_what_is_left(self) -> None:
        """End the run whose process has died; raise an error if that was killed."""
        assert self._process is not None
        code = self._process.wait()
        deadline = time.monotonic() + END_SECONDS
        with suppress(ProcessLookupError):
            while time.monotonic() < deadline:
                os.killpg(self._process.pid, signal.SIGKILL)
                time.sleep(0.05)
        if code == -signal.SIGKILL:
            raise Lost("the process that makes the runs was killed")

    def close(self) -> None:
        """Let the process end after the run at work."""
        if self._process is not None:
            self._socket.close()
            self._process.wait()

    def _start(self, log: IO[str]) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "server_app.engine.warm", str(theirs.fileno())]
            self._process = start(
                command,
                cwd=app_folder(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
