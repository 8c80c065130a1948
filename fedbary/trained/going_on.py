"""A run that starts from a finished one: what it takes over, and checks that both fit."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import nn

from fedbary.errors import SettingError
from fedbary.gaussian import Posterior
from fedbary.inference import PosteriorParameters
from fedbary.methods import Tensors, method_of
from fedbary.parts.parameters import told
from fedbary.runs.location import as_written
from fedbary.runs.run_folder import read_layout
from fedbary.settings.combinations import has_earlier_prior
from fedbary.settings.config import Settings
from fedbary.tasks import Signature, Task
from fedbary.trained.started_from import EarlierRun, read_earlier_run
from fedbary.variational.frozen import frozen_config, frozen_tensors, require_same_frozen


@dataclass(frozen=True, eq=False)
class Beginning:
    """What a run takes over from the earlier one that it starts from.

    Attributes
    ----------
    run
        The earlier run.
    model, state
        The global model and the method's state before the first round.
    prior
        The posterior that is the prior; None if the prior is another.
    """

    run: EarlierRun
    model: Tensors
    state: Tensors
    prior: Posterior | None


def beginning_of(
    settings: Settings, task: Task, signature: Signature, model: nn.Module
) -> Beginning | None:
    """Return what the settings' run starts from; None if it starts anew.

    Parameters
    ----------
    settings, task
        The new run's.
    signature, model
        What its sites agree on, and its network as initialised.

    Raises
    ------
    SettingError
        If the earlier run had another network, other inputs or other frozen weights.
    """
    if (run := read_earlier_run(settings, task.facts)) is None:
        return None
    require_same_frozen(model, {**frozen_config(model), **run.signature})
    before = read_layout(run.folder, task.signature_from)
    inherited = run.inherited(before.classes, signature.classes, method_of(settings))
    theirs, mine = ({**each.config()} for each in (before, signature))
    for name in sorted(theirs.keys() | mine.keys() - {"class-names"}):
        if name != "class-names" and theirs.get(name) != mine.get(name):
            allowed = f"{theirs.get(name)}, as in {run.folder}, where the run starts"
            raise SettingError(name, mine.get(name), allowed)
    wanted = model.state_dict()
    frozen = frozen_tensors(model)
    arrays = {n: t for n, t in run.arrays.items() if n not in frozen}
    tensors = replace(run, arrays=arrays).model(wanted, inherited)
    prior = None
    if has_earlier_prior(settings):
        own = told(PosteriorParameters, settings)
        prior = run.prior(wanted, inherited, own.prior_std)
        if own.prior == "earlier_only":
            return Beginning(run, wanted, method_of(settings).start(wanted), prior)
    with as_written(run.folder):
        started, state = method_of(settings).inherit(tensors, inherited)
    return Beginning(run, started, state, prior)
