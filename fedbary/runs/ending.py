"""The end of a process of Flower's: soon, and with the process that started it."""

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
"""Flower's word for the process that an app's process serves."""

GRACE_SECONDS = 10.0
"""For so long Flower's own end may take, which is forced after five seconds."""


def spare_imports() -> None:
    """Leave all that there is now out of every later collection, so that the process ends at once.

    What PyTorch's import leaves takes a second or two to collect. Triton's bindings would complain
    of what is not collected: where they are loaded nothing is spared.
    """
    if "triton" not in sys.modules:
        gc.freeze()


@cache
def end_with_parent() -> None:
    """End this process, if Flower started it for another, some seconds after that one.

    Flower watches the other process, too, but its signal does not wake a main thread that waits
    for messages: such a process asks a dead server for ever.
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
