"""Flower's internals: everything that this project uses besides Flower's public modules.

Flower promises nothing about these names. Each is imported where it is used, so a version that
moves one takes only what needs it. `tests/strategies/test_internals.py` names those that moved.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from functools import cache
from typing import TYPE_CHECKING

import flwr
from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid

if TYPE_CHECKING:
    from flwr.proto.node_pb2 import NodeInfo as NodeInfo
    from flwr.supercore.run import Run

NEWEST_TESTED = "1.42"
"""The newest version of Flower that the tests have run with."""

ClientAppCallable = Callable[[Message, Context], Message]

FLOWER_LOGGER = logging.getLogger("flwr")
log = FLOWER_LOGGER.log


class ErrorCode:
    """Flower's codes of an error reply, as far as they are used here."""

    UNKNOWN = 0
    CLIENT_APP_RAISED_EXCEPTION = 2


@cache
def warn_of_newer_flower() -> None:
    """Log once per process that Flower is newer than `NEWEST_TESTED`, if it is."""
    numbers = [re.match(r"(\d+)\.(\d+)", text) for text in (flwr.__version__, NEWEST_TESTED)]
    here, tested = (tuple(map(int, found.groups())) if found else () for found in numbers)
    if here > tested:
        said = "Flower %s is newer than %s, the newest that fedbary was tested with"
        log(logging.WARNING, said, flwr.__version__, NEWEST_TESTED)


def is_simulated(grid: Grid) -> bool:
    """Return whether a grid is that of Flower's simulation engine.

    It goes by the class's name: the engine's module takes seconds to import.
    """
    return any(kind.__name__ == "InMemoryGrid" for kind in type(grid).__mro__)


def at_exit(say: Callable[[], None]) -> None:
    """Call a function when Flower ends the process, before its log is handed over.

    A version of Flower without this hook does not call it.
    """
    with suppress(ImportError):
        from flwr.supercore.exit import add_exit_handler

        add_exit_handler(say)


def identify_task(run_id: int, node_id: int) -> None:
    """Set the identity that this process's messages carry, as Flower's launchers do."""
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run_id, node_id, 1


def empty_run(run_id: int) -> Run:
    """Return a run without an app."""
    from flwr.supercore.run import Run

    return Run.create_empty(run_id=run_id)


def number(message: Message, message_id: str) -> None:
    """Give a message the id that its replies name."""
    message.metadata.__dict__["_message_id"] = message_id


def unavailable(message_id: str, run_id: int) -> Message:
    """Return what a SuperLink answers for a message that it does not hold, or holds no more.

    It holds none whose reply it has handed out. The module is imported only where it is needed: it
    takes a second.
    """
    from flwr.server.superlink.linkstate.utils import create_message_error_unavailable_ins_message

    return create_message_error_unavailable_ins_message(message_id, run_id)


def with_content(message: Message, content: RecordDict) -> Message:
    """Return a message with other content and the same metadata, where a grid writes the id."""
    changed = copy(message)
    changed.__dict__["_content"] = content
    return changed
