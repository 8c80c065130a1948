"""A SuperLink for `flwr run`, which simulates on it."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedbary.launching.programs import stop_tree, tool
from fedbary.launching.superlink import wait_for_superlink
from fedbary.launching.watcher import start


@contextmanager
def superlink(
    environment: dict[str, str], home: Path, program: str = tool("flower-superlink")
) -> Iterator[Callable[[], None]]:
    """Start a SuperLink with the simulation runtime; yield a function that waits until it is ready.

    It is stopped at the end, with all that it started.
    """
    port = environment["FLWR_LOCAL_SUPERLINK_HTTP_API_PORT"]
    command = [program, "--insecure", "--simulation", "--isolation", "subprocess"]
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
