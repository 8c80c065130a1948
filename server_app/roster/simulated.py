"""Ray's state, for a server in the process of Flower's simulation engine."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time

END_SECONDS = 15.0
"""Seconds that a simulation whose server has failed may take to end by itself."""


def hindrance() -> str:
    """Return the obstacle that keeps a simulation's clients from answering, and where to look.

    Without Ray it returns nothing.
    """
    ray = sys.modules.get("ray")
    if ray is None:
        return ""
    folder = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    logs = os.path.join(folder, "ray", "session_latest", "logs")
    if ray.is_initialized():
        free, total = (
            found().get("CPU", 0) for found in (ray.available_resources, ray.cluster_resources)
        )
        return (
            f"Ray runs, but no worker has answered for a minute: {free:g} of its {total:g} CPUs "
            "are free; a worker takes minutes to start on a busy machine; Ray waits without end "
            f"for CPUs that other programs hold; the workers' logs are in {logs}"
        )
    address = os.environ.get("RAY_ADDRESS", "")
    if address == "local":
        return f"Ray has not started yet; its logs are in {logs}"
    named = f"the cluster that RAY_ADDRESS={address} names" if address else "the last cluster used"
    return f"Ray has not joined {named}; with RAY_ADDRESS=local it starts one of its own"


def end_simulation() -> None:
    """End the simulation's process soon, even while it waits for Ray.

    Flower's main thread waits as long as Ray lets it, whatever happened to the server. Call it only
    in a process of Flower's simulation engine: any other is not ours to end.
    """

    def end() -> None:
        time.sleep(END_SECONDS)
        os._exit(1)

    if "ray" in sys.modules:
        threading.Thread(target=end, daemon=True).start()
