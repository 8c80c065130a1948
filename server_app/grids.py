"""Grids around another: replies read one by one, recorded, counted, or replaced by an attack."""

from __future__ import annotations

import itertools
import os
import struct
import time
from collections.abc import Callable, Collection, Iterable
from copy import copy
from pathlib import Path
from typing import Any, cast

from flwr.app import ArrayRecord, Error, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from torch import Tensor

from fedbary.attacks import OmniscientAttack, hostile_clients
from fedbary.runs.location import RECORD
from fedbary.runs.progress import PROGRESS_VARIABLE, Progress
from fedbary.runs.record import append, entry, who
from fedbary.server_app.roster.member import Member
from fedbary.settings.config import Settings
from fedbary.strategies.internals import ErrorCode, with_content
from fedbary.strategies.wire import digest_of, size_of, words_of
from fedbary.texts import SCREEN, one_line

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


TOLD_BY_SITES = ("name", "content", "code", "versions")
"""Entries of the record from a site's words on itself."""

LONGEST = 2000
"""Characters of one of these words that are kept."""


class Recorded:
    """Another grid, whose messages are recorded in a run's folder, a line for each as it passes.

    Lines wait until `begin` is called: a run that has not begun leaves none.

    Parameters
    ----------
    grid : Grid
        The other grid; its arrays are as they travel.
    folder : Path
        The run's.
    """

    def __init__(self, grid: Grid, folder: Path) -> None:
        self._grid, self._file = grid, folder / RECORD
        self._run = grid.run.run_id
        self._waiting: list[dict[str, Any]] | None = []
        self._numbers = itertools.count(1)
        self._asked: dict[str, int] = {}
        self.note("start", **who())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def begin(self) -> None:
        """Write the lines that wait, and from now on each at once."""
        waiting, self._waiting = self._waiting or [], None
        append(self._file, waiting)

    def note(self, event: str, **words: Any) -> None:
        """Record an event."""
        line = entry(event, self._run, **words)
        if self._waiting is None:
            append(self._file, [line])
        else:
            self._waiting.append(line)

    def left_out(self, node: int, why: str) -> None:
        """Record that a node takes no part."""
        self.note("left out", node=str(node), reason=one_line(why, SCREEN))

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Push messages; return their ids."""
        messages = list(messages)
        numbers = [self._ask(message) for message in messages]
        ids = list(self._grid.push_messages(messages))
        self._asked.update(zip(ids, numbers, strict=False))  # none if they are too large
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Pull the replies that have come."""
        replies = list(self._grid.pull_messages(message_ids))
        for reply in replies:
            self._answer(reply, self._asked.pop(reply.metadata.reply_to_message_id, None))
        return replies

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Send messages, and return the replies."""
        messages = list(messages)
        numbers = {message.metadata.dst_node_id: self._ask(message) for message in messages}
        replies = list(self._grid.send_and_receive(messages, timeout=timeout))
        for reply in replies:
            self._answer(reply, numbers.get(reply.metadata.src_node_id))
        return replies

    def _ask(self, message: Message) -> int:
        number, node = next(self._numbers), str(message.metadata.dst_node_id)
        size = size_of(message.content)
        self.note("asked", number=number, node=node, **words_of(message), **size)
        return number

    def _answer(self, reply: Message, number: int | None) -> None:
        met = reply.metadata
        words: dict[str, Any] = {"number": number, "id": met.reply_to_message_id}
        words["node"] = str(met.src_node_id)
        if reply.has_error():
            self.note("error", **words, reason=one_line(str(reply.error.reason), SCREEN))
            return
        try:
            said = {**reply.content.config_records.get("site", {})}
            words |= size_of(reply.content)
            words["digest"] = digest_of(reply.content)
        except Exception as error:  # noqa: BLE001 - a stranger's content may raise any error
            words["unreadable"], said = type(error).__name__, {}
        told = {key: str(said[key])[:LONGEST] for key in TOLD_BY_SITES if key in said}
        self.note("answered", **words, **({"site": told} if told else {}))


def attacked(grid: Grid, settings: Settings, members: Callable[[], Iterable[Member]]) -> Grid:
    """Return the grid, or, for an omniscient attack, one that replaces hostile replies."""
    attack = settings.hostile
    if not isinstance(attack, OmniscientAttack):
        return grid
    chosen = hostile_clients(attack.hostile_fraction, settings.clients, settings.seed)

    def hostile() -> set[int]:
        return {member.node_id for member in members() if member.partition in chosen}

    return cast(Grid, Omniscient(grid, attack, hostile))


class Omniscient:
    """A grid around another; an attack on all honest replies replaces hostile training replies.

    Metrics and errors stay unchanged. Other messages pass.

    Parameters
    ----------
    grid : Grid
        The other grid.
    attack : OmniscientAttack
        The attack.
    hostile : callable
        Returns the hostile nodes.
    """

    def __init__(
        self, grid: Grid, attack: OmniscientAttack, hostile: Callable[[], Collection[int]]
    ) -> None:
        self._grid, self._attack, self._hostile = grid, attack, hostile

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages, and return the replies, those of hostile clients replaced."""
        messages = list(messages)
        replies = list(self._grid.send_and_receive(messages, timeout=timeout))
        if {message.metadata.message_type for message in messages} != {MessageType.TRAIN}:
            return replies
        received = {message.metadata.dst_node_id: _tensors(message) for message in messages}
        nodes = self._hostile()
        fitted = {
            reply.metadata.src_node_id: _tensors(reply) for reply in replies if reply.has_content()
        }
        honest = [tensors for node, tensors in fitted.items() if node not in nodes]
        sent = {
            node: self._attack.sent(received[node], tensors, honest, len(fitted) - len(honest))
            for node, tensors in fitted.items()
            if node in nodes
        }
        return [_with(reply, sent.get(reply.metadata.src_node_id)) for reply in replies]


def _tensors(message: Message) -> dict[str, Tensor]:
    return message.content.array_records["arrays"].to_torch_state_dict()


def _with(reply: Message, tensors: dict[str, Tensor] | None) -> Message:
    """Return a reply with these arrays in place of its own, if there are any."""
    if tensors is None or not reply.has_content():
        return reply
    return with_content(reply, RecordDict({**reply.content, "arrays": ArrayRecord(tensors)}))


WATCH_SECONDS = 0.1


def watched(grid: Grid, rounds: int) -> Grid:
    """Return the grid, or, if a command waits for its progress, one that writes it."""
    file = os.environ.get(PROGRESS_VARIABLE)
    return cast(Grid, Watched(grid, Path(file), rounds)) if file else grid


class Watched:
    """Another grid, whose replies of a round are counted as they come.

    Parameters
    ----------
    grid : Grid
        The other grid.
    file : Path
        File of the progress.
    rounds : int
        The run's.
    """

    def __init__(self, grid: Grid, file: Path, rounds: int) -> None:
        self._grid, self._file, self._rounds = grid, file, rounds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Push messages one by one, pull the replies as they come, and count them.

        A grid that answers messages together gets all at once.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        messages = list(messages)
        waiting: set[str] = set()
        replies: list[Message] = []

        def pull() -> None:
            for reply in self._grid.pull_messages(set(waiting)):
                waiting.discard(reply.metadata.reply_to_message_id)
                replies.append(reply)
            self._count(messages[0], len(replies), len(messages))

        at_once = max(1, len(messages)) if getattr(self._grid, "together", None) else 1
        for first in range(0, len(messages), at_once):
            ids = self._grid.push_messages(messages[first : first + at_once])
            waiting.update(filter(None, ids))  # a message without an id was not sent
            pull()
        while waiting and (deadline is None or time.monotonic() < deadline):
            time.sleep(WATCH_SECONDS)
            pull()
        return replies

    def _count(self, message: Message, answered: int, asked: int) -> None:
        doing = message.metadata.message_type
        if doing in ("train", "evaluate"):
            config = next(iter(message.content.config_records.values()))
            server_round = int(config["server-round"])  # type: ignore[arg-type]
            Progress(server_round, self._rounds, doing, answered, asked).write(self._file)
