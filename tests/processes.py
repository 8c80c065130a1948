"""Which of Flower's servers are at work for a test, and waiting for what they do."""

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess, Popen, run
from typing import Any

import forked
import psutil
import yaml

from fedbary.errors import RunError
from fedbary.launching.programs import free_port
from fedbary.runs.location import require_free
from fedbary.settings.config import Settings

MARK = "FEDBARY_TEST"
NAMES = ("flower-super", "flwr-", "ray::")


def marked(folder: Path) -> dict[str, str]:
    """An environment by which `servers_of` knows what a test has started."""
    return {**os.environ, MARK: str(folder)}


def ran(
    *command: Any, cwd: Path, code: int = 0, seconds: int = 400, **variables: str
) -> CompletedProcess[str]:
    """Run a command, whose servers `servers_of` knows, to its end with an exit code."""
    done = run(
        [*map(str, command)], cwd=cwd, env={**marked(cwd), **variables}, capture_output=True,
        encoding="utf-8", timeout=seconds, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done


def deployed(settings: Settings, folder: Path, *words: str, code: int = 0) -> CompletedProcess[str]:
    """Make a run of these settings on real servers, in `folder`/run; nobody is left at work."""
    (folder / "settings.yaml").write_text(yaml.safe_dump(settings.model_dump()))
    command = [forked.command(), "deploy", "settings.yaml", "output=run"]
    done = ran(*command, *words, cwd=folder, code=code)
    assert servers_of(folder) == []
    return done


@contextlib.contextmanager
def dead_ray() -> Iterator[dict[str, str]]:
    """The variable of a machine on which the last Ray cluster that was started has died."""
    with tempfile.TemporaryDirectory() as home:  # the paths of Ray's sockets must be short
        trace = Path(home) / "ray" / "ray_current_cluster"
        trace.parent.mkdir()
        trace.write_text(f"127.0.0.1:{free_port()}")
        yield {"RAY_TMPDIR": home}
        assert trace.exists()


def servers_of(folder: Path) -> list[psutil.Process]:
    """Flower's servers, and what they have started, in an environment with the folder's mark."""
    found = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        words, environment = process.info["cmdline"] or (), process.info["environ"] or {}
        flower = any(name in word for word in words for name in NAMES)
        if flower and environment.get(MARK) == str(folder):
            found.append(process)
    return found


def is_free(folder: Path) -> bool:
    """Whether nobody writes to a run's folder."""
    try:
        require_free(folder)
    except RunError:
        return False
    return True


def commands(process: psutil.Process) -> list[str]:
    """The command lines of what a process has started, each as one text."""
    found = []
    for child in process.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(" ".join(child.cmdline()))
    return found


def wait_until(
    condition: Callable[[], Any], seconds: float = 500, alive: Popen[bytes] | None = None
) -> Any:
    """Wait for a condition, while a process is alive; return what it found."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert alive is None or alive.poll() is None or condition(), "the process has ended"
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.2)
    return found
