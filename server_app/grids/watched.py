"""A grid that writes the number of a round's answers to a file, for a bar in a terminal."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from flwr.app import Message
from flwr.serverapp import Grid

from fedbary.runs.progress import PROGRESS_VARIABLE, Progress

POLL_SECONDS = 0.1


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
            time.sleep(POLL_SECONDS)
            pull()
        return replies

    def _count(self, message: Message, answered: int, asked: int) -> None:
        doing = message.metadata.message_type
        if doing in ("train", "evaluate"):
            config = next(iter(message.content.config_records.values()))
            server_round = int(config["server-round"])  # type: ignore[arg-type]
            Progress(server_round, self._rounds, doing, answered, asked).write(self._file)
