"""How long the server waits for nodes at the start, and how often it says for whom."""

from __future__ import annotations

import time
from collections.abc import Callable
from logging import INFO, WARNING

from server_app.roster.simulated import hindrance
from strategies.internals import log

GRACE_SECONDS = 120.0
"""How long to wait for further nodes when all that came cannot take part.

A node that was being sent a message when the server was killed hears nothing else until Flower has
missed two heartbeats of the server, a minute.
"""

LOG_SECONDS = 30.0
"""How often the log says who is waited for."""

PATIENCE = 55.0
"""Seconds without a further answer after which the log says what may hold a simulation up."""


class Waiting:
    """A wait for nodes that began now.

    Parameters
    ----------
    timeout : float
        Seconds that it lasts at most.
    """

    def __init__(self, timeout: float) -> None:
        now = time.monotonic()
        self._deadline, self._latest, self._due = now + timeout, now, now + LOG_SECONDS
        self._warned = False

    def is_over(self, has_news: bool, in_vain: bool) -> bool:
        """Whether to wait no longer.

        Parameters
        ----------
        has_news : bool
            Whether a node has answered since the last call.
        in_vain : bool
            Whether all nodes that have answered cannot take part.
        """
        now = time.monotonic()
        if has_news:
            self._latest = now
        return now > self._deadline or (in_vain and now > self._latest + GRACE_SECONDS)

    def say(self, awaited: Callable[[], str]) -> None:
        """Log who is awaited, if that is due, and once what may hold a simulation up."""
        now = time.monotonic()
        if now <= self._due:
            return
        self._due = now + LOG_SECONDS
        log(INFO, "%s", awaited())
        if now > self._latest + PATIENCE and not self._warned and hindrance():
            self._warned = True
            log(WARNING, "%s", hindrance())
