"""Flower's SuperLink of a simulation, and its commands."""

from __future__ import annotations

import json
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.error import URLError
from urllib.request import HTTPSHandler, OpenerDirector, ProxyHandler, build_opener

from fedbary.errors import RunError
from fedbary.launching.app import app_folder
from fedbary.launching.environment import flower_environment, progress_in, ray_folder
from fedbary.launching.programs import run_program, stop_tree, tool
from fedbary.launching.watcher import start

SUPERLINK_SECONDS = 180
"""How long a machine with much else to do may take to start one."""


@dataclass(frozen=True)
class Flower:
    """A SuperLink with a home of its own, for one simulation; it may not be ready yet.

    Parameters
    ----------
    home : Path
        Its folder, FLWR_HOME.
    environment : mapping
        The variables that its commands need.
    wait : callable
        Waits until it is ready; raises a RunError if it does not start.
    """

    home: Path
    environment: dict[str, str]
    wait: Callable[[], None]


@contextmanager
def flower(log: IO[str] | None = None) -> Iterator[Flower]:
    """Start a SuperLink with a home of its own; stop it, and all it started, at the end.

    Output to `log` shows no progress bar.
    """
    with tempfile.TemporaryDirectory(prefix="fedbary-") as scratch:
        home = Path(scratch)
        environment = {**flower_environment(home), **ray_folder(), **progress_in(home, log)}
        with superlink(environment, home) as wait:
            yield Flower(home, environment, wait)


def flwr_run(
    environment: dict[str, str],
    name: str,
    words: list[str],
    log: IO[str] | None,
    is_over: Callable[[], bool] | None = None,
) -> None:
    """Run the app on the SuperLink of that name and stream it to its end, whatever that is.

    Once `is_over`, it does not wait for Flower and Ray to finish.
    """
    command = [tool("flwr"), "run", str(app_folder()), name, "--stream", *words]
    run_program(command, environment, log, is_over)


@contextmanager
def superlink(environment: dict[str, str], home: Path) -> Iterator[Callable[[], None]]:
    """Start a SuperLink with the simulation runtime; yield a function that waits until it is ready.

    It is stopped at the end, with all that it started.
    """
    port = environment["FLWR_LOCAL_SUPERLINK_HTTP_API_PORT"]
    command = [tool("flower-superlink"), "--insecure", "--simulation", "--isolation", "subprocess"]
    command += ["--host", "127.0.0.1", "--port", port]
    log = home / "superlink.log"
    with open(log, "wb") as output:
        process = start(
            command,
            environment,
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield lambda: wait_for_superlink(process, f"127.0.0.1:{port}", log)
    except BaseException:
        stop_tree(process)
        raise
    stop_tree(process, seconds=0)


def wait_for_superlink(
    process: subprocess.Popen[bytes], address: str, log: Path, ca: Path | None = None
) -> None:
    """Wait until a SuperLink answers, by HTTPS if its certificate's authority is given.

    Raises
    ------
    RunError
        If it ends, or does not answer in time; the message is the last error of its log, its last
        line, or how long it had.
    """
    handlers = [HTTPSHandler(context=ssl.create_default_context(cafile=ca))] if ca else []
    opener = build_opener(ProxyHandler({}), *handlers)
    url = f"{'https' if ca else 'http'}://{address}/health"
    deadline = time.monotonic() + SUPERLINK_SECONDS
    while not _is_healthy(opener, url):
        if process.poll() is not None or time.monotonic() > deadline:
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            said = [line for line in lines if "ERROR" in line] or lines
            late = f"no answer within {SUPERLINK_SECONDS} s; is the machine busy?"
            raise RunError(f"Flower's SuperLink did not start: {said[-1] if said else late}")
        time.sleep(0.1)


def _is_healthy(opener: OpenerDirector, url: str) -> bool:
    try:
        with opener.open(url, timeout=1) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


def last_status(environment: dict[str, str], name: str) -> str:
    """Return the newest run's status on the SuperLink of that name."""
    command = [tool("flwr"), "list", name, "--format", "json"]
    done = subprocess.run(
        command, cwd=app_folder(), env=environment, capture_output=True, check=False
    )
    try:
        return str(json.loads(done.stdout)["runs"][0]["status"])
    except (ValueError, KeyError, IndexError):
        return "unknown"
