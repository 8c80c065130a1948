"""What a client keeps, in the state that Flower holds for its node."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from flwr.app import ArrayRecord, RecordDict
from torch import Tensor

from fedbary.aggregation.sums import select_prefix
from fedbary.errors import SettingError
from fedbary.runs.released import Releases


class StateReleases(Releases):
    """What a client has released with noise, in a node's state: of one run alone.

    Parameters
    ----------
    state : RecordDict
        The state of the node's context.
    """

    _prefix = "fedbary.released."

    def __init__(self, state: RecordDict) -> None:
        self._state = state

    def held(self) -> dict[str, Mapping[str, Tensor]]:
        """Return all releases."""
        records = select_prefix(self._prefix, self._state.array_records)
        return {question: record.to_torch_state_dict() for question, record in records.items()}

    def add(self, question: str, release: Mapping[str, Tensor]) -> None:
        """Keep a release."""
        self._state[self._prefix + question] = ArrayRecord({**release})


class StateMemory:
    """A `fedbary.runs.memory.Memory` in a node's state, lost when its SuperNode is started again.

    Parameters
    ----------
    state : RecordDict
        The state of the node's context.
    run : str
        Name of the run.
    """

    def __init__(self, state: RecordDict, run: str) -> None:
        self._state = state
        self._prefix = f"fedbary.{run}."

    def recall(self, admitted: int) -> dict[str, Tensor]:
        """Return the tensors of a round; nothing for round 0, before the first reply.

        Raises
        ------
        SettingError
            If they are missing.
        """
        if admitted == 0:
            return {}
        record = self._state.array_records.get(f"{self._prefix}{admitted}")
        if record is None:
            allowed = f"this client's tensors of round {admitted}; a folder keep_in would keep them"
            raise SettingError("the node's state", "begun anew", allowed)
        return dict(record.to_torch_state_dict())

    def keep(
        self, server_round: int, tensors: Mapping[str, Tensor], needed: Collection[int] | None
    ) -> None:
        """Keep the tensors of a round; drop the rounds that are not `needed`, unless it is None."""
        kept = {f"{self._prefix}{number}" for number in (server_round, *(needed or ()))}
        for key in [key for key in self._state if key.startswith(self._prefix)]:
            if needed is not None and key not in kept:
                del self._state[key]
        self._state[f"{self._prefix}{server_round}"] = ArrayRecord({**tensors})
