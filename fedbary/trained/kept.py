"""The models that the clients of a simulated run keep, read from the run's folder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from fedbary.errors import SettingError
from fedbary.runs.checkpoints import load_checkpoint
from fedbary.runs.location import CLIENTS
from fedbary.runs.memory import Memory

_KEPT, _RUN = "kept.", "run"


def kept_models(folder: Path, names: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Return each simulated client's model of its last admitted reply, by the site's name.

    Parameters
    ----------
    folder : Path
        The run's.
    names : mapping of str to Tensor
        A state dict of the run's model, whose tensors are returned.

    Raises
    ------
    SettingError
        If its clients kept no models, or the models are missing.
    """
    state = load_checkpoint(folder, "last").strategy
    rounds = {
        key.removeprefix(_KEPT): int(number)
        for key, number in state.items()
        if re.fullmatch(rf"{re.escape(_KEPT)}partition \d+", key)
    }
    found = {}
    for site, number in sorted(rounds.items(), key=lambda item: int(item[0].split()[1])):
        place = folder / CLIENTS / site.split()[1] / f"{int(state[_RUN]):016x}"
        kept = Memory(place).recall(number)
        if names.keys() <= kept.keys():
            if any(kept[name].shape != tensor.shape for name, tensor in names.items()):
                raise SettingError(str(place), "other shapes", "the shapes that this client kept")
            found[site] = {name: kept[name] for name in names}
    if not found:
        allowed = "a simulated run whose clients keep a model: one with projection=WB or RKLB, or "
        raise SettingError("run", str(folder), allowed + "with a method such as pFedBayes")
    return found
