"""A grid that reads replies one by one: an unreadable reply is an error of its own client.

Flower's SuperLink checks only the headers of a SuperNode's messages. A damaged body raises an error
in the server's app, and all replies that are read together with it are lost.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable
from copy import copy
from typing import Any, cast

from flwr.app import Error, Message, RecordDict
from flwr.serverapp import Grid
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from strategies.internals import ErrorCode

POLL_SECONDS = 3.0
"""Flower's own."""

UNREADABLE = (
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    AssertionError,
    EOFError,
    RecursionError,
    DecodeError,
    struct.error,
)
"""Errors of reading a stranger's message; a failing connection raises none of these."""


def guarded(grid: Grid) -> Grid:
    """Return a grid of real servers that no reply can end."""
    return cast(Grid, Guarded(grid))


class Guarded:
    """Another grid, whose replies are pulled one by one.

    Parameters
    ----------
    grid : Grid
        The other grid.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._asked: dict[str, Message] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Push messages; return their ids."""
        messages = list(messages)
        ids = list(self._grid.push_messages(messages))
        for message_id, message in zip(ids, messages, strict=False):  # none if they are too large
            if message_id:  # else it was not sent
                self._asked[message_id] = copy(message)
                self._asked[message_id].__dict__["_content"] = RecordDict()
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Pull the replies that have come; one that cannot be read is an error of its client."""
        return [reply for message_id in message_ids for reply in self._pull(message_id)]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Push messages and pull the replies, as Flower's grid does."""
        deadline = None if timeout is None else time.monotonic() + timeout
        waiting = {message_id for message_id in self.push_messages(messages) if message_id}
        replies: list[Message] = []
        while waiting:
            found = self.pull_messages(waiting)
            replies += found
            waiting -= {reply.metadata.reply_to_message_id for reply in found}
            if not waiting or (deadline is not None and time.monotonic() >= deadline):
                break
            time.sleep(POLL_SECONDS)
        return replies

    def _pull(self, message_id: str) -> list[Message]:
        try:
            return list(self._grid.pull_messages([message_id]))
        except UNREADABLE as error:
            if message_id not in self._asked:
                raise
            reason = f"its message cannot be read ({type(error).__name__})"
            failure = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason)
            return [Message(failure, reply_to=self._asked[message_id])]
