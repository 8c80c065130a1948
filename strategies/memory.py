"""The memory of a server from round to round: a method's state, and whose replies it admitted."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping

import torch
from flwr.app import ArrayRecord
from torch import Tensor

from fedbary.aggregation.sums import select_prefix
from fedbary.errors import SettingError
from fedbary.methods import Method, Tensors

from .conventions import Convention, check_arrays

KEPT_KEY = "kept-round"
"""The entry with the last round in which the client's reply was admitted, 0 for none. If known, the
same as before the last round that counted follows: the server may go back there."""

RUN_KEY = "kept-run"
"""The entry that distinguishes a client's tensors of several runs; a resumed run keeps it."""

PRIOR = "prior/"
"""Prefix of the keys of the prior's arrays in a training message."""

STATE = "method."
"""Prefix of the names of a method's state in a strategy's state."""

_KEPT, _RUN = "kept.", "run"


class Memory:
    """A method's state at the server, each client's last admitted round, and the prior.

    Parameters
    ----------
    method : Method
        The method.
    keeps : bool
        True: its clients keep tensors from round to round.
    prior_arrays : ArrayRecord, optional
        The prior that clients are sent.

    Attributes
    ----------
    state : mapping of str to Tensor
        The method's state after the last round that counted.
    pending : mapping of str to Tensor
        The state after a round that does not count yet.
    """

    def __init__(self, method: Method, keeps: bool, prior_arrays: ArrayRecord | None) -> None:
        self._method, self._keeps, self._prior = method, keeps, prior_arrays
        self.state: Tensors = {}
        self.pending: Tensors = {}
        self._inherited: Tensors | None = None
        self._admitted: dict[str, int] = {}
        self._admitted_before: dict[str, int] | None = None
        self._run = secrets.randbits(62)

    def inherit(self, state: Tensors) -> None:
        """Take the state that the first round begins with."""
        self.state = self._inherited = state

    def begin(self, model: Tensors) -> None:
        """Begin with the first round."""
        self.state = self._inherited or self._method.start(model)
        self._admitted, self._admitted_before = {}, None
        self._run = secrets.randbits(62)

    def entries(self, client: str, trains: bool) -> dict[str, int | list[int]]:
        """Return what a client's message says of the tensors that it keeps."""
        if not self._keeps:
            return {}
        before = [self._admitted_before] if trains and self._admitted_before is not None else []
        rounds = [admitted.get(client, 0) for admitted in (self._admitted, *before)]
        return {KEPT_KEY: rounds, RUN_KEY: self._run}

    def commit(self, clients: Iterable[str], server_round: int) -> None:
        """Keep the state of a round that counts, and the clients that it admitted."""
        self.state = self.pending
        self._admitted_before = dict(self._admitted)
        self._admitted |= dict.fromkeys(clients, server_round)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state for a resume."""
        state = {STATE + name: tensor for name, tensor in self.state.items()}
        if self._keeps:
            numbers = {_KEPT + name: number for name, number in self._admitted.items()}
            numbers[_RUN] = self._run
            state |= {name: torch.tensor(number) for name, number in numbers.items()}
        return state

    def load_state_dict(self, state: Mapping[str, Tensor], completed_rounds: int) -> None:
        """Take a state that `state_dict` returned after so many rounds."""
        self.state = {name: tensor.clone() for name, tensor in select_prefix(STATE, state).items()}
        self._inherited = None if completed_rounds else self.state
        self._admitted = {name: int(number) for name, number in select_prefix(_KEPT, state).items()}
        self._run = int(state.get(_RUN, self._run))

    def prior(self, arrays: ArrayRecord, convention: Convention) -> ArrayRecord:
        """Return the prior's arrays under the keys that they have in a training message.

        Raises
        ------
        SettingError
            If they are not the Gaussians of the global arrays.
        """
        if self._prior is None:
            return ArrayRecord()
        pairs = convention.pairs(arrays.keys())
        keys = sorted({*pairs, *pairs.values()})
        prior = ArrayRecord({key: self._prior[key] for key in keys if key in self._prior})
        try:
            check_arrays(prior, ArrayRecord({key: arrays[key] for key in keys}), convention)
        except ValueError as error:
            raise SettingError("prior_arrays", error, "the global arrays' Gaussians") from None
        return ArrayRecord({PRIOR + key: array for key, array in prior.items()})
