"""Back to what the server held before a round, if after it nobody can train."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from flwr.app import ArrayRecord, Message
from torch import Tensor

from fedbary.aggregation.prefixes import under

from .arrays import array_from_tensor, tensor_from_array
from .distances import LEAST, STANDS_OUT
from .internals import ErrorCode

_ARRAYS, _STATE, _FAR = "before.arrays.", "before.state.", "before.far."
_ROUND, _BARRED = "before.round", "barred."


@dataclass(frozen=True, eq=False)
class Before:
    """What the server held before a round that counted, in which replies stood out.

    Parameters
    ----------
    round : int
        The round.
    arrays : ArrayRecord
        The global arrays from which it began.
    state : mapping
        The strategy's `state_dict` then.
    far : mapping of str to float
        Whose replies stood out, and how many times as far as usual they lay.
    """

    round: int
    arrays: ArrayRecord
    state: Mapping[str, Tensor]
    far: Mapping[str, float]


class Retreat:
    """Remembers what was before a round in which replies stood out, and whom it blamed.

    If in the next round at least two other clients reply and none can train, the round is undone,
    and the clients whose replies stood out are refused from then on.

    Attributes
    ----------
    before : Before, optional
        What the server goes back to; None if in the last round nobody stood out.
    barred : dict of str to int
        The clients that are refused, and for which round.
    """

    def __init__(self) -> None:
        self.before: Before | None = None
        self.barred: dict[str, int] = {}

    def is_due(self, failed: Collection[str], trained: Collection[str]) -> bool:
        """Return whether the last round is to be undone, by who could not train and who did."""
        if self.before is None:
            return False
        others = set(failed) - self.before.far.keys()
        return len(others) >= LEAST - 1 and set(trained) <= self.before.far.keys()

    def refusal(self, name: str) -> str | None:
        """Say why a client is refused from now on; None if it is not."""
        if name not in self.barred:
            return None
        after = self.barred[name]
        return f"refused from now on, as no client could train after its reply of round {after}"

    def state_dict(self) -> dict[str, Tensor]:
        """Return what a resume needs."""
        state = {_BARRED + name: torch.tensor(number) for name, number in self.barred.items()}
        if self.before is not None:
            arrays = self.before.arrays.items()
            state |= {_ARRAYS + key: tensor_from_array(array).clone() for key, array in arrays}
            state |= {_STATE + key: t.clone() for key, t in self.before.state.items()}
            state |= {_FAR + name: torch.tensor(t) for name, t in self.before.far.items()}
            state[_ROUND] = torch.tensor(self.before.round)
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take a state of `state_dict`."""
        self.barred = {name: int(number) for name, number in under(_BARRED, state).items()}
        self.before = None
        if _ROUND in state:
            arrays = {k: array_from_tensor(tensor) for k, tensor in under(_ARRAYS, state).items()}
            far = {name: float(times) for name, times in under(_FAR, state).items()}
            earlier = under(_STATE, state)
            self.before = Before(int(state[_ROUND]), ArrayRecord(arrays), earlier, far)


def standing_out(farness: Mapping[str, float]) -> dict[str, float]:
    """Return whose replies stand out: far beyond the usual, and near the farthest.

    Two hostile clients hide neither behind the other, and an honest one that goes far is not taken
    for one that goes ten times as far.
    """
    if len(farness) < LEAST:
        return {}
    least = max(STANDS_OUT, max(farness.values()) / STANDS_OUT)
    return {name: times for name, times in farness.items() if times > least}


def could_not_train(reply: Message) -> bool:
    """Whether a reply that is not admitted is the client's own, and no word of Flower's on it."""
    return reply.has_content() or reply.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
