"""Admitted replies that spoil their aggregate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from flwr.app import ArrayRecord

from fedbary.aggregation.reals import flat_reals, is_continuous
from fedbary.errors import SettingError

from .arrays import tensor_from_array

_Reply = TypeVar("_Reply")


def spoilers(
    replies: Sequence[_Reply],
    attempt: Callable[[Sequence[_Reply]], object],
    distance: Callable[[_Reply], float],
) -> list[str | None]:
    """Return each reply's fault in the aggregate; None for replies whose aggregate is sound.

    Replies that are not sound alone are left out first. A reply is tried alone only where no half,
    quarter and so on of the replies with it is sound: one culprit of n costs 2 log₂ n attempts.
    Then the farthest of the others are left out, as few as bisection finds to be enough. If the
    aggregate of all is not sound, at least one is left out.

    Parameters
    ----------
    replies : sequence
        The replies, in an order that content alone sets.
    attempt : callable
        Aggregates some of them; raises a ValueError if the aggregate is not sound.
    distance : callable
        Returns a reply's distance from the arrays that its client was sent.
    """

    def fault(some: Sequence[int]) -> str | None:
        try:
            attempt([replies[k] for k in sorted(some)])
        except SettingError:  # too few for the rule: no reply's fault
            return None
        except ValueError as error:
            return f"it makes the aggregate unsound: {error}"
        return None

    def alone(some: Sequence[int]) -> dict[int, str]:
        if (reason := fault(some)) is None or len(some) < 2:
            return dict.fromkeys(some, reason) if reason else {}
        middle = len(some) // 2
        return alone(some[:middle]) | alone(some[middle:])

    reasons = list(map(alone(range(len(replies))).get, range(len(replies))))
    rest = sorted(
        (k for k, reason in enumerate(reasons) if reason is None),
        key=lambda k: distance(replies[k]),
    )
    if rest and (reason := fault(rest)):
        sound, unsound = 1, len(rest)
        while unsound - sound > 1:
            middle = (sound + unsound) // 2
            if said := fault(rest[:middle]):
                unsound, reason = middle, said
            else:
                sound = middle
        for k in rest[sound:]:
            reasons[k] = reason
    return reasons


def farthest(record: ArrayRecord, reference: ArrayRecord) -> float:
    """Return the largest distance of a value in the record from the reference's."""
    most = 0.0
    for key, array in record.items():
        tensor = tensor_from_array(array)
        if is_continuous(tensor) and tensor.numel():
            there = flat_reals(tensor_from_array(reference[key])).double()
            most = max(most, float((flat_reals(tensor).double() - there).abs().max()))
    return most
