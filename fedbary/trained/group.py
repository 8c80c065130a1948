"""The model of a group of clients, of a run of method=Hierarchy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedbary.aggregation.prefixes import under
from fedbary.errors import SettingError
from fedbary.gaussian import Posterior
from fedbary.methods import method_of
from fedbary.methods.hierarchy import Hierarchy
from fedbary.parts.parameters import told
from fedbary.runs.checkpoints import load_checkpoint
from fedbary.settings.task_words import OfClasses, OfGuarantees
from fedbary.trained.run import Trained
from fedbary.trained.started_from import METHOD_STATE


def of_group(trained: Trained, folder: Path, group: str) -> Trained:
    """Return a run's model with the posterior of a group; the network is yet to be filled.

    Raises
    ------
    SettingError
        If the run has no such group, or a temperature or sets, which are the global model's.
    """
    method, settings = method_of(trained.settings), trained.settings
    if not isinstance(method, Hierarchy):
        raise SettingError("group", group, f"none for method={settings.method}, without groups")
    if told(OfClasses, settings).calibrate != "none":
        raise SettingError("group", group, "none with calibrate: the global model's temperature")
    if told(OfGuarantees, settings).conformal is not None:
        raise SettingError("group", group, "none with conformal: sets are the global model's")
    state = under(METHOD_STATE, load_checkpoint(folder, "last").strategy)
    if not (model := method.model_of(state, group)):
        groups = sorted({*method.groups_of(state).values()})
        raise SettingError("group", group, f"a group of this run: {', '.join(groups)}")
    whole = {**trained.posterior.state_dict(), **model}
    by = replace(trained.predictive, posterior=Posterior.from_state_dict(whole))
    return replace(trained, predictive=by)
