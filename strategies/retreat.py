"""Return to the state before a round if nobody can train after it."""

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
    """State before a round that counted, in which replies stood out.

    Parameters
    ----------
    round : int
        The round.
    arrays : ArrayRecord
        The global arrays from which it began.
    state : mapping
        The strategy's `state_dict` then.
    far : mapping of str to float
        Clients whose replies stood out, each with its distance as a multiple of the usual one.
    """

    round: int
    arrays: ArrayRecord
    state: Mapping[str, Tensor]
    far: Mapping[str, float]


class Retreat:
    """Remembers the state before a round in which replies stood out, and their clients.

    The round is undone if, in the next one, at least two other clients answer and none can train.
    The clients whose replies stood out are then refused for the rest of the run.

    Attributes
    ----------
    before : Before, optional
        State to go back to; None if nobody stood out in the last round.
    barred : dict of str to int
        Refused clients, each with the round that it is blamed for.
    """

    def __init__(self) -> None:
        self.before: Before | None = None
        self.barred: dict[str, int] = {}

    def is_due(self, failed: Collection[str], trained: Collection[str]) -> bool:
        """Return whether to undo the last round, from who could train and who could not."""
        if self.before is None:
            return False
        others = set(failed) - self.before.far.keys()
        return len(others) >= LEAST - 1 and set(trained) <= self.before.far.keys()

    def refusal(self, name: str) -> str | None:
        """Return the reason to refuse a client from now on; None if it is not refused."""
        if name not in self.barred:
            return None
        after = self.barred[name]
        return f"refused from now on, as no client could train after its reply of round {after}"

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state for a resume."""
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
    """Return the clients whose replies stand out: far beyond the usual, and near the farthest.

    A hostile client thus cannot hide behind another hostile one. An honest client that goes far is
    not blamed if another goes ten times as far.
    """
    if len(farness) < LEAST:
        return {}
    least = max(STANDS_OUT, max(farness.values()) / STANDS_OUT)
    return {name: times for name, times in farness.items() if times > least}


def could_not_train(reply: Message) -> bool:
    """Return whether a refused reply is the client's own, and not Flower's error."""
    return reply.has_content() or reply.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
