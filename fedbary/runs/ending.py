"""The end of a Flower process: without delay, and together with the process that started it."""

from __future__ import annotations

import gc
import os
import select
import sys
import threading
import time
from contextlib import suppress
from functools import cache

PARENT = "--parent-pid"
"""Flower's option that names the process that an app's process serves."""

GRACE_SECONDS = 10.0
"""Seconds that Flower's own end may take; Flower forces it after five."""


def spare_imports() -> None:
    """Exclude all present objects from garbage collection, so that the process ends at once.

    The objects of PyTorch's import take a second or two to collect. Triton's bindings complain
    about objects that are not collected: if they are loaded, nothing is excluded.
    """
    if "triton" not in sys.modules:
        gc.freeze()


@cache
def end_with_parent() -> None:
    """End this process, if Flower started it for another, some seconds after that one.

    Flower watches the other process too. But its signal does not wake a main thread that waits for
    messages, which would ask a dead server for ever.
    """
    words = dict(zip(sys.argv, sys.argv[1:], strict=False))
    if PARENT in words:
        watch = threading.Thread(target=_end_after, args=[int(words[PARENT])], daemon=True)
        watch.start()


def _end_after(pid: int) -> None:
    with suppress(ProcessLookupError):
        _wait_for(pid)
    time.sleep(GRACE_SECONDS)
    os._exit(1)


def _wait_for(pid: int) -> None:
    if sys.platform == "linux":
        select.select([os.pidfd_open(pid)], [], [])
        return
    while True:
        os.kill(pid, 0)
        time.sleep(0.5)
