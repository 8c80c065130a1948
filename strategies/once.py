"""Long entries of messages' configs, sent to a node once: a client mod, and its grid.

A projection of features has as many numbers as a network, and is the same in every round. The grid
sends such an entry with the first message to a node. Later messages hold its digest, and the node
takes the entry from its state. A node that has lost the entry says so in its reply, and is sent it
again at once.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid

from fedbary.errors import SettingError

from .internals import ClientAppCallable, with_content
from .passing import PassingGrid

LONG = 1000
"""Numbers from which an entry is long."""

KEPT = "kept-entry."
"""Prefix of an entry whose value is a digest, and of a record of a node's state."""

LACKING = "a message with the entry's numbers, which this node lacks"
"""Reply of a node that has lost an entry."""


def once(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Keep long entries, and put them back in place of their digests.

    A Flower client mod, ``ClientApp(mods=[once])``; other messages pass unchanged.

    Raises
    ------
    SettingError
        If an entry is missing, or differs from its digest.
    """
    for config in message.content.config_records.values():
        for key, value in [*config.items()]:
            if key.startswith(KEPT):
                kept = context.state.config_records.get(key, ConfigRecord())
                if kept.get("digest") != value:
                    raise SettingError(KEPT.strip("."), key.removeprefix(KEPT), LACKING)
                del config[key]
                config[key.removeprefix(KEPT)] = kept["numbers"]
            elif _is_long(value):
                held = {"digest": _digest(value), "numbers": value}
                context.state[KEPT + key] = ConfigRecord(held)
    return call_next(message, context)


class OnceGrid(PassingGrid):
    """A Flower grid that sends long entries of configs once to a node whose app has `once`.

    Parameters
    ----------
    grid : Grid
        Carrier of the messages.
    """

    def __init__(self, grid: Grid) -> None:
        super().__init__(grid)
        self._held: dict[int, set[str]] = {}

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages without the entries that nodes have; return the replies.

        A node that has lost an entry is sent the whole message within the same time.
        """
        messages, begun = list(messages), time.monotonic()
        short = [self._short(message) for message in messages]
        replies = list(self._grid.send_and_receive(short, timeout=timeout))
        lacking = {reply.metadata.src_node_id for reply in replies if _lacks(reply)}
        if again := [each for each in messages if each.metadata.dst_node_id in lacking]:
            left = None if timeout is None else max(0.0, timeout - time.monotonic() + begun)
            replies = [reply for reply in replies if not _lacks(reply)]
            replies += self._grid.send_and_receive(again, timeout=left)
        sent = {each.metadata.dst_node_id: set(_digests(each).values()) for each in messages}
        for reply in replies:
            node = reply.metadata.src_node_id
            self._held[node] = set() if reply.has_error() else sent.get(node, set())
        return replies

    def _short(self, message: Message) -> Message:
        """Return a message with a digest for each entry that its node has."""
        held = self._held.get(message.metadata.dst_node_id, set())
        had = {key: found for key, found in _digests(message).items() if found in held}
        if not had:
            return message
        content = {**message.content}
        for name, config in message.content.config_records.items():
            own = {key: value for key, value in config.items() if (name, key) not in had}
            own |= {KEPT + key: found for (where, key), found in had.items() if where == name}
            content[name] = ConfigRecord(own)
        return with_content(message, RecordDict(content))


def _digests(message: Message) -> dict[tuple[str, str], str]:
    """Return the digests of a message's long entries, by record and name."""
    return {
        (name, key): _digest(value)
        for name, config in message.content.config_records.items()
        for key, value in config.items()
        if _is_long(value)
    }


def _is_long(value: Any) -> bool:
    return isinstance(value, list) and len(value) >= LONG and isinstance(value[0], int | float)


def _digest(numbers: Any) -> str:
    return hashlib.blake2b(np.asarray(numbers).tobytes(), digest_size=16).hexdigest()


def _lacks(reply: Message) -> bool:
    return reply.has_error() and LACKING in (reply.error.reason or "")
