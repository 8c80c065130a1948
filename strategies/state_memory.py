"""What a client keeps between rounds, in the state that Flower holds for its node."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from flwr.app import ArrayRecord, RecordDict
from torch import Tensor

from fedbary.errors import SettingError


class StateMemory:
    """A `fedbary.runs.memory.Memory` in a node's state: gone when its SuperNode is started again.

    Parameters
    ----------
    state : RecordDict
        The state of the node's context.
    run : str
        What the run is called.
    """

    def __init__(self, state: RecordDict, run: str) -> None:
        self._state = state
        self._prefix = f"fedbary.{run}."

    def recall(self, admitted: int) -> dict[str, Tensor]:
        """Return what was kept in a round; of round 0, before the first reply, nothing.

        Raises
        ------
        SettingError
            If it is not there.
        """
        if admitted == 0:
            return {}
        record = self._state.array_records.get(f"{self._prefix}{admitted}")
        if record is None:
            allowed = f"what this client kept in round {admitted}; a folder, keep_in, outlives it"
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
