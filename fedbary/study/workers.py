"""Threads that make the runs of a sweep, and end with all that they have started."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from queue import Empty, SimpleQueue

import psutil

from fedbary.launching.programs import stop
from fedbary.launching.warm_process import WarmProcess
from fedbary.settings.config import Settings

Make = Callable[[str, Settings, WarmProcess], None]

STOP_SECONDS = 10.0
"""Seconds that the end of a sweep waits for its threads; their processes are killed by then."""

GENTLE_SECONDS = 3.0
"""Seconds that a process may take to end once asked."""


class Workers:
    """Threads that make runs one after another, each with a warm process of its own.

    An exception in their `with` block stops the active runs, and no further run begins. The threads
    are daemons: one that hangs, as in a download, does not keep the process alive.

    Parameters
    ----------
    jobs
        Runs at a time.
    runs
        The settings of each run by its name.
    make
        Makes a run: `make(name, settings, warm)`; its error is the reason of a failure.
    """

    def __init__(self, jobs: int, runs: Mapping[str, Settings], make: Make) -> None:
        self._make = make
        self._todo: SimpleQueue[tuple[str, Settings]] = SimpleQueue()
        for item in runs.items():
            self._todo.put(item)
        self._ended: SimpleQueue[tuple[str, Exception | None]] = SimpleQueue()
        self._stopping = threading.Event()
        self._warm = [WarmProcess() for _ in range(jobs)]
        self._threads = [
            threading.Thread(target=self._work, args=[warm], daemon=True) for warm in self._warm
        ]

    def __enter__(self) -> Workers:
        for thread in self._threads:
            thread.start()
        return self

    def ended(self, seconds: float) -> Iterator[tuple[str, Exception | None]]:
        """Yield the runs that have ended, by name with their errors; wait for the first."""
        try:
            yield self._ended.get(timeout=seconds)
            while True:
                yield self._ended.get_nowait()
        except Empty:
            return

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            for thread in self._threads:
                thread.join()
            return
        self._stopping.set()
        deadline = time.monotonic() + STOP_SECONDS
        while any(thread.is_alive() for thread in self._threads) and time.monotonic() < deadline:
            started = psutil.Process().children(recursive=True)
            for warm in self._warm:
                warm.terminate()
            stop(started, GENTLE_SECONDS)
            for thread in self._threads:
                thread.join(0.1)

    def _work(self, warm: WarmProcess) -> None:
        while not self._stopping.is_set():
            try:
                name, settings = self._todo.get_nowait()
            except Empty:
                break
            try:
                self._make(name, settings, warm)
                error = None
            except Exception as caught:  # noqa: BLE001 - the other runs go on
                error = caught
            self._ended.put((name, error))
        warm.close()
