"""The server's wait for nodes at the start, and its lines on it."""

from __future__ import annotations

import time
from collections.abc import Callable
from logging import INFO, WARNING

from server_app.roster.simulated import hindrance
from strategies.internals import log

GRACE_SECONDS = 120.0
"""Seconds to wait for further nodes when all present ones cannot take part.

A node may be silent for a minute if the server was killed while it sent that node a message: the
node hears nothing else until Flower has missed two of the server's heartbeats.
"""

LOG_SECONDS = 30.0
"""Seconds between lines on the awaited nodes."""

PATIENCE = 55.0
"""Seconds without a further answer after which the log names a simulation's possible obstacle."""


class Waiting:
    """A wait for nodes that begins now.

    Parameters
    ----------
    timeout : float
        Most seconds that it lasts.
    """

    def __init__(self, timeout: float) -> None:
        now = time.monotonic()
        self._deadline, self._latest, self._due = now + timeout, now, now + LOG_SECONDS
        self._warned = False

    def is_over(self, has_news: bool, in_vain: bool) -> bool:
        """Return whether the wait is over.

        Parameters
        ----------
        has_news : bool
            True: a node has answered since the last call.
        in_vain : bool
            True: none of the nodes that answered can take part.
        """
        now = time.monotonic()
        if has_news:
            self._latest = now
        return now > self._deadline or (in_vain and now > self._latest + GRACE_SECONDS)

    def say(self, awaited: Callable[[], str]) -> None:
        """Log the awaited nodes, if that is due, and once a simulation's possible obstacle."""
        now = time.monotonic()
        if now <= self._due:
            return
        self._due = now + LOG_SECONDS
        log(INFO, "%s", awaited())
        if now > self._latest + PATIENCE and not self._warned and hindrance():
            self._warned = True
            log(WARNING, "%s", hindrance())
