"""Limits of a site with its own rows: the size that it needs, and a budget over all runs.

If a site's answers are more equations than its rows have numbers, the rows can be found, see
`fedbary.runs.sent`. So a site counts what it sends, and stops long before. This prevents that
attack; it is no guarantee.
"""

from __future__ import annotations

import math
from logging import WARNING
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from flwr.app import Message

from fedbary.data.sites import UNBOUNDED, Limits
from fedbary.errors import SettingError
from fedbary.runs.answered import fewest
from fedbary.runs.sent import Sent, whole_answer
from fedbary.runs.whole import locked
from fedbary.strategies.internals import log
from fedbary.strategies.wire import numbers_of

if TYPE_CHECKING:
    from fedbary.client_app.node import Node


class LimitReached(ValueError):
    """The site answers no more; the message may go to the server."""


def require_size(limits: Limits | None, told: Told) -> None:
    """Raise a LimitReached unless a site has rows enough for what it is asked."""
    if limits is not None and told.rows < fewest(limits, told.columns):
        log(WARNING, "%d rows with %d columns: the site tells nothing of them (min-rows=%d, "
            "max-columns=%g)", told.rows, told.columns, limits.min_rows,
            limits.max_columns)  # fmt: skip
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


class Told(NamedTuple):
    """The rows that a site answers from, their columns, and the answers that they bear."""

    rows: int
    columns: int
    bear: float = math.inf

    def most(self, limits: Limits) -> int:
        """Return the numbers that a site sends over all runs: budget times n (p + 1)."""
        return int(limits.budget * self.rows * (self.columns + 1))


def left(node: Node, limits: Limits | None, told: Told, terms: int) -> int:
    """Return how many numbers a site may still send; `UNBOUNDED` without a budget."""
    if limits is None or not limits.budget:
        return UNBOUNDED
    sent = Sent.read(_folder(node))
    answers = min((told.bear - sent.answers) * whole_answer(terms), 2**53)
    return max(0, int(min(told.most(limits) - sent.numbers, answers)))


def least_shown(node: Node, limits: Limits) -> int:
    """Return how many rows answers may show alone: as many as bear those given and a few more."""
    return (Sent.read(_folder(node)) if limits.budget else Sent()).least(limits)


def count(node: Node, limits: Limits | None, told: Told, reply: Message, terms: int = 0) -> Message:
    """Return a reply once its numbers are counted, see `spend`."""
    spend(node, limits, told, numbers_of(reply.content), terms)
    return reply


def spend(node: Node, limits: Limits | None, told: Told, numbers: int, terms: int = 0) -> None:
    """Count numbers that leave a site; a LimitReached where they pass the budget.

    They hold slopes or products of `terms` columns, if of any. The counter is on disk before they
    leave.
    """
    if limits is None or not limits.budget:
        return
    folder = _folder(node)
    with locked(folder):
        before = Sent.read(folder)
        answers = before.answers + (numbers / whole_answer(terms) if terms else 0)
        sent = Sent(before.numbers + numbers, answers)
        if sent.numbers > (most := told.most(limits)):
            log(WARNING, "The next answer would make %d numbers over all runs, budget=%g allows %d:"
                " the site answers no more", sent.numbers, limits.budget, most)  # fmt: skip
        elif terms and answers > told.bear:
            log(WARNING, "The next answer would be number %.1f over all runs, budget=%g allows "
                "%.1f: few rows are of one level, or in some answers alone. The site answers no "
                "more; a larger min-cell leaves such levels out", answers, limits.budget,
                told.bear)  # fmt: skip
        else:
            sent.write(folder)
            return
    said = "this site has told as much of its rows as its budget allows"
    raise LimitReached(f"{said}; a larger budget= in its node config lets it answer more")


def _folder(node: Node) -> Path:
    if (folder := node.keeps_in) is None:
        allowed = "a folder in the node config: the site counts there what it has sent"
        raise SettingError("state-path", "none", allowed)
    return folder
