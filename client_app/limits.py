"""Limits of a site with its own rows: the size that it needs, and a budget over all runs.

T gradients and Hessians of n rows with p columns are T (p + p (p + 1) / 2) equations for the n p
numbers of the rows. If there are more equations than numbers, the rows can be found. So a site
counts what it sends, and stops long before. This prevents that attack; it is no guarantee.
"""

from __future__ import annotations

import json
from logging import WARNING
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Message

from fedbary.data.sites import UNBOUNDED, Limits
from fedbary.errors import SettingError
from fedbary.runs.whole import locked, write_whole
from fedbary.strategies.internals import log
from fedbary.strategies.wire import numbers_of

if TYPE_CHECKING:
    from fedbary.client_app.node import Node

SENT = "sent.json"
"""The file in a site's state folder that says how many numbers it has sent."""


class LimitReached(ValueError):
    """The site answers no more; the message may go to the server."""


def require_size(limits: Limits | None, rows: int, columns: int) -> None:
    """Raise a LimitReached unless a site has rows enough for what it is asked."""
    if limits is not None and (rows < limits.min_rows or columns > limits.max_columns * rows):
        log(WARNING, "%d rows with %d columns: the site tells nothing of them (min-rows=%d, "
            "max-columns=%g)", rows, columns, limits.min_rows, limits.max_columns)  # fmt: skip
        raise LimitReached("this site has too few rows for so many columns")


def in_cells(limits: Limits | None, answer: dict[str, Any]) -> dict[str, Any]:
    """Return an answer whose cells of counts ``below`` points hold no rows, or enough of them.

    With k = `min_cell` and n values in a column, a count becomes the nearest of 0, k, 2 k, …, up to
    n − k, and n. So it is off by less than k, to either side. Fewer than k values count as none.
    """
    if limits is None or limits.min_cell <= 1 or "below" not in answer:
        return answer
    least = limits.min_cell
    seen = np.array([n if n >= least else 0 for n in answer["seen"]])[:, None]
    below = np.array(answer["below"], dtype=int).reshape(len(seen), -1)
    top = (seen // least - 1).clip(0) * least
    told = np.where(
        2 * below > seen + top, seen, np.minimum((below + least // 2) // least * least, top)
    )
    return {**answer, "below": told.flatten().tolist(), "seen": seen[:, 0].tolist()}


def left(node: Node, limits: Limits | None, rows: int, columns: int) -> int:
    """Return how many numbers a site may still send; `UNBOUNDED` without a budget."""
    if limits is None or not limits.budget:
        return UNBOUNDED
    return max(0, _most(limits, rows, columns) - _sent(_folder(node) / SENT))


def count(node: Node, limits: Limits | None, rows: int, columns: int, reply: Message) -> Message:
    """Return a reply once its numbers are counted; a LimitReached where they pass the budget.

    Over all runs the site sends budget times n (p + 1) numbers, for n rows of p columns and a
    target. The counter is on disk before the reply leaves.
    """
    if limits is None or not limits.budget:
        return reply
    folder, most = _folder(node), _most(limits, rows, columns)
    with locked(folder):
        sent = _sent(folder / SENT) + numbers_of(reply.content)
        if sent > most:
            log(WARNING, "The next answer would make %d numbers over all runs, budget=%g allows %d:"
                " the site answers no more", sent, limits.budget, most)  # fmt: skip
            raise LimitReached("this site has told as much of its rows as its budget allows")
        write_whole(folder / SENT, json.dumps({"numbers": sent}).encode())
    return reply


def _most(limits: Limits, rows: int, columns: int) -> int:
    return int(limits.budget * rows * (columns + 1))


def _folder(node: Node) -> Path:
    if (folder := node.keeps_in) is None:
        allowed = "a folder in the node config: the site counts there what it has sent"
        raise SettingError("state-path", "none", allowed)
    return folder


def _sent(file: Path) -> int:
    """Return the numbers that a site has sent; a SettingError if the counter is damaged."""
    if not file.exists():
        return 0
    try:
        sent = json.loads(file.read_bytes())["numbers"]
        if type(sent) is int and sent >= 0:
            return sent
    except (ValueError, KeyError, TypeError):
        pass
    allowed = "the file as the site wrote it; without it the site would tell more"
    raise SettingError(str(file), "a damaged counter", allowed)
