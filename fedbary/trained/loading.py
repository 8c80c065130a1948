"""Loading the model of a run that has ended, from the run's folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedbary.aggregation.sums import select_prefix
from fedbary.data.examples import Examples
from fedbary.data.forms import one_state, user_path
from fedbary.errors import SettingError
from fedbary.gaussian import Posterior
from fedbary.methods import method_of
from fedbary.methods.hierarchy import Hierarchy
from fedbary.predictive import Predictive
from fedbary.predictive.mahalanobis import Background
from fedbary.runs.checkpoints import load_checkpoint
from fedbary.runs.conformal_kept import read_sites
from fedbary.runs.data_kept import read_digest
from fedbary.runs.location import METRICS, POSTERIOR, as_written, read_rounds, read_settings
from fedbary.runs.own_code import require_same_code, require_trusted
from fedbary.runs.resume import require_ended
from fedbary.runs.run_folder import (
    BACKGROUND,
    LAST,
    NETWORKS,
    read_layout,
    read_signature,
    tensors_of,
)
from fedbary.runs.schema import NOISE_VAR, POOL, result_line
from fedbary.settings.config import validated
from fedbary.settings.task_words import OfClasses, OfGuarantees
from fedbary.tasks import risks, row_names, task_of
from fedbary.trained.run import Trained
from fedbary.trained.started_from import METHOD_STATE
from fedbary.variational.frozen import frozen_tensors


def load(run: Path | str, own_code: bool = False, group: str | None = None) -> Trained:
    """Load the model of a finished run, and try it on two inputs of zeros.

    Parameters
    ----------
    run
        The run's folder, as `fedbary simulate` prints it.
    own_code
        True: functions that the run's settings name, as in ``model=own:resnet``, may be imported
        and called. Use it only for a folder that you trust: the writer of its settings chose them.
    group
        A group of a run of ``method=Hierarchy``: its model is loaded in place of the global one.

    Raises
    ------
    SettingError, RunError
        If the folder holds no whole run, see `fedbary.runs.resume.require_ended`; if it is damaged;
        if it names code that the user has not asked for, that has changed since, or that lies in
        the folder; if it has no such group, or a temperature or sets, which are the global model's.
    """
    folder = user_path(run)
    with as_written(folder), one_state():
        require_ended(folder)
        trained = _loaded(folder, own_code)
        if group is not None:
            trained = of_group(trained, folder, group)
            _fill(trained.network, trained.posterior, folder)
        zeros = Examples(trained.task.zeros(trained.signature), None)
        if trained.task.predicts:
            trained.predict(zeros, samples=1)
    return trained


def _loaded(folder: Path, own_code: bool) -> Trained:
    made = read_settings(folder)
    require_trusted(made, folder, own_code)
    if not (rounds := read_rounds(folder)):
        raise SettingError("run", str(folder), f"a run with the lines of its {METRICS}")
    here = {"device": "auto", "resume": "none"}
    settings = validated({**made, **here})
    task = task_of(settings)
    signature = read_layout(folder, task.signature_from)
    require_same_code(settings, read_signature(folder))
    posterior = Posterior.from_state_dict(tensors_of(folder, Path(POSTERIOR).stem))
    network, line = task.make_model(signature), result_line(rounds)
    _fill(network, posterior, folder)
    by = Predictive(
        network.state_dict(),
        posterior,
        _members(folder, line),
        method_of(settings).joining(line.get(POOL, {})),
        Background.of(tensors_of(folder, BACKGROUND) if _holds(folder, BACKGROUND) else {}),
        float(line.get(NOISE_VAR, 0.0)),
    )
    return Trained(
        network.eval(),
        by,
        settings,
        signature,
        tensors_of(folder, task.facts) if task.facts else {},
        rounds,
        read_digest(folder),
        read_sites(folder, len(row_names(settings, signature)), risks(signature)),
        folder,
        tensors_of(folder, LAST) if _holds(folder, LAST) else {},
    )


def _fill(network: nn.Module, posterior: Posterior, folder: Path) -> None:
    """Put a posterior into a network, or its means into one of point weights; frozen parts too."""
    held, wanted = posterior.state_dict(), {**network.state_dict(), **frozen_tensors(network)}
    found = {
        name: held.get(name, posterior.mean.get(name)) for name in wanted
    }  # a buffer that is no part of a posterior stays as it is
    given = {name: tensor for name, tensor in found.items() if tensor is not None}
    if not given or not all(_is_like(tensor, wanted[name]) for name, tensor in given.items()):
        raise SettingError("run", str(folder), "a posterior of the network that its settings name")
    network.load_state_dict({n: wanted[n] if t is None else t for n, t in found.items()})


def _is_like(tensor: Tensor, wanted: Tensor) -> bool:
    """Return whether a tensor can replace another: the same shape and kind of numbers, finite."""
    alike = tensor.is_floating_point() == wanted.is_floating_point()
    return alike and tensor.shape == wanted.shape and bool(tensor.isfinite().all())


def _members(folder: Path, line: Mapping[str, Any]) -> dict[str, Tensor]:
    """Read the networks that predict together; they must exist if the round had some."""
    held = "members" in line or _holds(folder, NETWORKS)
    return tensors_of(folder, NETWORKS) if held else {}


def _holds(folder: Path, name: str) -> bool:
    return (folder / f"{name}.safetensors").exists()


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
    if settings.of_task(OfClasses).calibrate != "none":
        raise SettingError("group", group, "none with calibrate: the global model's temperature")
    if settings.of_task(OfGuarantees).conformal is not None:
        raise SettingError("group", group, "none with conformal: sets are the global model's")
    state = select_prefix(METHOD_STATE, load_checkpoint(folder, "last").strategy)
    if not (model := method.model_of(state, group)):
        groups = sorted({*method.groups_of(state).values()})
        raise SettingError("group", group, f"a group of this run: {', '.join(groups)}")
    whole = {**trained.posterior.state_dict(), **model}
    by = replace(trained.predictive, posterior=Posterior.from_state_dict(whole))
    return replace(trained, predictive=by)
