"""Flower's internals: everything that this project uses besides Flower's public modules.

Flower promises nothing about these names. If a version moves one,
`tests/strategies/test_internals.py` names it, and only this file needs a change.
"""

from __future__ import annotations

import sys
from copy import copy

from flwr.app import Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.constant import ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.exit import add_exit_handler
from flwr.supercore.logger import FLOWER_LOGGER, log
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

__all__ = [
    "FLOWER_LOGGER",
    "ClientAppCallable",
    "ErrorCode",
    "NodeInfo",
    "Run",
    "TaskIdentity",
    "add_exit_handler",
    "is_simulated",
    "log",
    "number",
    "unavailable",
    "with_content",
]


def is_simulated(grid: Grid) -> bool:
    """Return whether a grid is that of Flower's simulation engine.

    It looks whether the engine's module is imported, and does not import it, which takes seconds.
    """
    if "flwr.superlink.grid" not in sys.modules:
        return False
    from flwr.superlink.grid import InMemoryGrid

    return isinstance(grid, InMemoryGrid)


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
