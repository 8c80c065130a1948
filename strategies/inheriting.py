"""A strategy that may start from an earlier run: from its state, with its posterior as prior."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from typing import Any

from flwr.app import ArrayRecord, Message, RecordDict
from torch import Tensor

from fedbary.aggregation.prefixes import under
from fedbary.errors import SettingError
from fedbary.gaussian import Posterior
from fedbary.methods import Method, Tensors
from fedbary.methods.shared.inherited import Inherited

from .arrays import Blanks
from .conventions import Convention
from .gated import GatedStrategy
from .names import Names
from .soundness import check_arrays

PRIOR = "prior/"
"""Prefix of the keys of the prior's arrays in a training message."""

STATE = "method."
"""Prefix of the names of a method's state in a strategy's state."""


class InheritingStrategy(GatedStrategy, ABC):
    """A strategy that may begin with what an earlier run has left.

    Parameters
    ----------
    *args, **kwargs
        Those of `GatedStrategy`.
    prior_arrays : ArrayRecord, optional
        A posterior in the global arrays' names: clients use it as the prior in every round. Its
        Gaussian arrays are part of each training message. None: clients have their own prior.
    """

    method: Method
    convention: Convention

    def __init__(self, *args: Any, prior_arrays: ArrayRecord | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.prior_arrays = prior_arrays
        self._inherited: Tensors | None = None
        self._state: Mapping[str, Tensor] = {}

    @property
    def groups(self) -> Mapping[str, str]:
        """Each client's group by its name; empty for methods without groups."""
        return self.method.groups_of(self._state)

    def start_from(self, arrays: ArrayRecord, state: Mapping[str, Tensor]) -> ArrayRecord:
        """Begin with an earlier run; return the arrays to start from.

        Sums and sites of the earlier run's clients are kept; what clients now send is added.

        Parameters
        ----------
        arrays
            The earlier run's global arrays, as `start` returns them.
        state
            What the earlier strategy's `state_dict` returned after its last round.

        Raises
        ------
        SettingError
            If the method needs what the earlier run does not have.
        ValueError
            If arrays or state are not finite.
        """
        names = Names(arrays.keys(), self.convention)
        held = names.read(arrays)
        inherited = Inherited(Posterior.from_state_dict(held), under(STATE, state))
        model, first = self.method.inherit(held, inherited)
        started = names.write(dict(model), arrays, Blanks())
        self.begin(started, first)
        return started

    def begin(self, arrays: ArrayRecord, state: Tensors) -> None:
        """Begin with these arrays and this state of the method; a ValueError if one is unsound."""
        check_arrays(arrays, arrays, self.convention)
        self.method.check_state(Names(arrays.keys(), self.convention).read(arrays), state)
        self._state = self._inherited = state

    def _first_state(self, model: Tensors) -> Tensors:
        """Return the method's state before the first round."""
        return self.method.start(model) if not self._inherited else self._inherited

    def _with_prior(self, messages: list[Message], arrays: ArrayRecord) -> list[Message]:
        """Add the prior to messages; those that share a record share the new one."""
        assert self.prior_arrays is not None
        pairs = self.convention.pairs(arrays.keys())
        keys = sorted({*pairs, *pairs.values()})
        prior = ArrayRecord(
            {key: self.prior_arrays[key] for key in keys if key in self.prior_arrays}
        )
        try:
            check_arrays(prior, ArrayRecord({key: arrays[key] for key in keys}), self.convention)
        except ValueError as error:
            raise SettingError("prior_arrays", error, "the global arrays' Gaussians") from None
        made: dict[int, ArrayRecord] = {}
        for message in messages:
            record = message.content.array_records[self.arrayrecord_key]
            if id(record) not in made:
                added = {PRIOR + key: array for key, array in prior.items()}
                made[id(record)] = ArrayRecord({**record, **added})
            held = {**message.content, self.arrayrecord_key: made[id(record)]}
            message.content = RecordDict(held)
        return messages
