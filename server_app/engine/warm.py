"""Simulations in forks of one process, which has done their imports.

`python -m server_app.engine.warm FD` serves the other end of the Unix socket FD, which belongs to a
`fedbary.launching.warm_process.WarmProcess`. It receives the path of a settings file with a
descriptor for the output, forks, waits, and answers with one byte, 0 for a run that ended well.
Errors before the first request go to its own output.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from contextlib import suppress
from importlib import import_module

from fedbary.inference import INFERENCE
from fedbary.parts.registry import modules
from fedbary.runs.commit import git_commit
from fedbary.runs.ending import spare_imports
from fedbary.settings.config import ROOT
from server_app.engine import inline

os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
"""pandas loads pyarrow, whose allocator else starts a thread, which no fork would have."""

FOR_THE_FORKS = (
    "client_app",
    *(f"fedbary.inference.{name}" for name in INFERENCE),
    *(f"fedbary.tasks.{name}" for name in modules("tasks")),
    "fedbary.data.images.digits",
    "fedbary.data.tables.diabetes",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "pandas",
    "sklearn.datasets",
    "sklearn.linear_model",
)
"""Modules that a run imports later than the apps do."""

PATH_BYTES = 4096


def main() -> None:
    """Fork for every request until the other end is closed."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    for module in FOR_THE_FORKS:
        import_module(module)
    git_commit(ROOT)
    spare_imports()
    with open(os.devnull, "wb") as nothing:
        _write_to(nothing.fileno())
    with socket.socket(fileno=int(sys.argv[1])) as server:
        while True:
            path, descriptors, _, _ = socket.recv_fds(server, PATH_BYTES, 1)
            if not path:
                return
            if (child := os.fork()) == 0:
                break
            os.close(descriptors[0])
            _, status = os.waitpid(child, 0)
            with suppress(BrokenPipeError):
                server.send(bytes([status != 0]))
    _write_to(descriptors[0])
    os.close(descriptors[0])
    sys.argv[1] = os.fsdecode(path)
    inline.main()


def _write_to(descriptor: int) -> None:
    for output in (1, 2):
        os.dup2(descriptor, output)


if __name__ == "__main__":
    main()
