"""Simulations in forks of one process, which has imported what they need.

`python -m server_app.warm FD` serves the other end of the Unix socket FD, which belongs to a
`fedbary.warm.WarmProcess`: it receives the path of a settings file with a descriptor for the
output, forks, waits, and answers with one byte, 0 for a run that ended well.
"""

from __future__ import annotations

import os
import socket
import sys
from importlib import import_module

from server_app import inline

FOR_THE_FORKS = ("client_app", "matplotlib.backends.backend_agg", "matplotlib.figure", "pandas")
"""What a run imports later than the apps do."""

PATH_BYTES = 4096


def main() -> None:
    """Fork for every request until the other end is closed."""
    for module in FOR_THE_FORKS:
        import_module(module)
    with socket.socket(fileno=int(sys.argv[1])) as server:
        while True:
            path, descriptors, _, _ = socket.recv_fds(server, PATH_BYTES, 1)
            if not path:
                return
            if (child := os.fork()) == 0:
                break
            os.close(descriptors[0])
            _, status = os.waitpid(child, 0)
            server.send(bytes([status != 0]))
    for output in (1, 2):
        os.dup2(descriptors[0], output)
    os.close(descriptors[0])
    sys.argv[1] = os.fsdecode(path)
    inline.main()


if __name__ == "__main__":
    main()
