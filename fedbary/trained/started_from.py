"""The earlier run that a run starts from: whether both fit, and what it takes over."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedbary.aggregation.sums import select_prefix
from fedbary.data.forms import content_of, user_path
from fedbary.errors import SettingError
from fedbary.gaussian import LOG_VAR_SUFFIX, Posterior
from fedbary.methods import METHODS, Method, Tensors, full_name, method_of
from fedbary.methods._method import Inherited
from fedbary.methods._sums import SumsMethod, head_names
from fedbary.runs.checkpoints import load_round
from fedbary.runs.location import (
    METRICS,
    POSTERIOR,
    SETTINGS,
    as_written,
    read_rounds,
    read_settings,
)
from fedbary.runs.own_code import require_same_code
from fedbary.runs.provenance import write_settings
from fedbary.runs.resume import require_ended
from fedbary.runs.run_folder import read_layout, read_signature, tensors_of
from fedbary.runs.schema import ROUND, TEMPERATURE, result_line
from fedbary.runs.sites import forgotten_by, note_forgotten
from fedbary.settings.combinations import has_earlier_prior
from fedbary.settings.config import Settings, read_yaml
from fedbary.tasks import Signature, Task
from fedbary.variational.frozen import frozen_config, frozen_tensors, require_same_frozen

METHOD_STATE = "method."
"""Prefix of the names of a method's state in a checkpoint."""

STARTED_FROM = "started_from"
"""The entry of settings.yaml: the earlier run's name, its round and its posterior's SHA-256."""

PRIOR = "prior"
"""Name of the file of the posterior that is the prior, with prior=earlier."""

SEEN_ALIKE = ("task", "normalise", "pixels", "features", "whiten", "missing")
"""Settings of the network's input; the new run must have the same values."""


@dataclass(frozen=True, eq=False)
class EarlierRun:
    """A finished run that another run starts from.

    Attributes
    ----------
    folder, round, sha256
        Its folder, the round of its result, and the digest of its posterior's file.
    arrays, state
        The global model and the method's state after that round.
    posterior, facts
        Its posterior, and what its task has learnt by asking.
    settings, signature
        Its settings, and what its sites agreed on.
    temperature
        T of its predictions; 1 where its clients told none.
    """

    folder: Path
    round: int
    sha256: str
    arrays: Tensors
    state: Tensors
    posterior: Posterior
    facts: Tensors
    settings: Mapping[str, Any]
    signature: Mapping[str, Any]
    temperature: float

    def note(self) -> dict[str, Any]:
        """Return what the new run's settings.yaml notes of it."""
        at = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        return {"run": self.folder.name, "round": self.round, "sha256": self.sha256, "at": at}

    @property
    def of_sums(self) -> bool:
        """True if its head is made of sums."""
        before = self.settings["method"]  # not imported: one's own is the new run's, or no matter
        return issubclass(METHODS.get(before, Method), SumsMethod)

    def inherited(self, old: Sequence[str], new: Sequence[str], method: Method) -> Inherited:
        """Return what a run with some classes takes over from this run, which had `old` ones.

        Raises
        ------
        SettingError
            If an old class is not among the new ones, or the same ones have another order.
        """
        if missing := [name for name in old if name not in new]:
            allowed = f"also {', '.join(missing)}, as in {self.folder}"
            raise SettingError("classes", ", ".join(new), allowed)
        if len(old) == len(new) and tuple(old) != tuple(new):
            raise SettingError("classes", ", ".join(new), f"the order of {self.folder}")
        places = tuple(old.index(name) if name in old else -1 for name in new)
        moved = () if places == tuple(range(len(old))) else places
        same = self.settings["method"] == full_name(type(method))
        same = same or (self.of_sums and isinstance(method, SumsMethod))
        state = self.state if same else {}
        return Inherited(self.posterior, state, moved, self.settings)

    def model(self, wanted: Tensors, inherited: Inherited) -> dict[str, Tensor]:
        """Return the tensors that a network starts from; rows of new classes are as in `wanted`.

        A head of sums predicts at a temperature T. Other methods begin at its logits over T.

        Raises
        ------
        SettingError
            If the network is another one; names the tensor.
        """
        held = {**self.posterior.mean, **self.posterior.state_dict(), **self.arrays}
        if self.of_sums and not inherited.state:
            held |= {name: held[name] / self.temperature for name in head_names(self.arrays)}
        names = [set(Posterior.from_state_dict(each).mean) for each in (self.arrays, wanted)]
        if more := names[0] - names[1]:
            self._refuse(f"has {min(more)!r} beside")
        found = {}
        for name, like in wanted.items():
            if name not in held:
                gaussian = name.endswith(LOG_VAR_SUFFIX)
                self._refuse(f"has no {name!r}{', its weights are points' if gaussian else ''}")
            try:
                found[name] = inherited.laid_out(held[name], like)
            except ValueError as error:
                self._refuse(f"has {name!r} {error}")
            if not found[name].isfinite().all():
                self._refuse(f"has {name!r} with values that are not finite")
        return found

    def prior(self, like: Tensors, inherited: Inherited, std: float) -> Posterior:
        """Return the posterior of the Gaussians among `like`; new classes have N(0, std²).

        Raises
        ------
        SettingError
            If there are none, or one of them was deterministic in the earlier run.
        """
        gaussian = Posterior.from_state_dict(like).log_var
        if not gaussian:
            raise SettingError("prior", "earlier", "normal for a network without Gaussian weights")
        mean, log_var = {}, {}
        for name, tensor in gaussian.items():
            if name not in self.posterior.log_var:
                self._refuse(f"has no variance of {name!r}")
            own = self.posterior.mean[name], self.posterior.log_var[name]
            new = torch.zeros_like(tensor), torch.full_like(tensor, 2 * math.log(std))
            mean[name], log_var[name] = map(inherited.laid_out, own, new)
        return Posterior(mean, log_var)

    def _refuse(self, why: str) -> None:
        allowed = f"a run of this network; {self.folder} {why}"
        raise SettingError("start_from", str(self.folder), allowed)


def read_earlier_run(settings: Settings, facts: str) -> EarlierRun | None:
    """Return the run that the settings start from; None for `start_from=none`.

    Parameters
    ----------
    settings
        The new run's.
    facts
        Name of the file of the task's facts; "" for a task without facts.

    Raises
    ------
    SettingError
        If there is no whole run, or its network sees other inputs than the new one's.
    """
    if settings.start_from == "none":
        return None
    folder = user_path(settings.start_from).resolve()
    if not folder.is_dir():
        raise SettingError("start_from", settings.start_from, "none, or the folder of a run")
    with as_written(folder):
        require_ended(folder)
        before = read_settings(folder)
        for name in SEEN_ALIKE:
            mine, theirs = dict(settings).get(name), before.get(name)
            if None not in (mine, theirs) and mine != theirs:
                raise SettingError(name, mine, f"{theirs}, as in {folder}, where the run starts")
        result = result_line(read_rounds(folder))
        number, temperature = result[ROUND], result.get(TEMPERATURE, 1.0)
        if not (isinstance(temperature, float | int) and 0 < temperature < math.inf):
            raise SettingError(TEMPERATURE, temperature, f"a number above 0 in {folder / METRICS}")
        checkpoint = load_round(folder, number)
        return EarlierRun(
            folder,
            number,
            hashlib.sha256(content_of(folder / POSTERIOR)).hexdigest(),
            checkpoint.arrays,
            select_prefix(METHOD_STATE, checkpoint.strategy),
            Posterior.from_state_dict(tensors_of(folder, Path(POSTERIOR).stem)),
            tensors_of(folder, facts) if facts else {},
            before,
            read_signature(folder),
            temperature,
        )


def note_start(folder: Path, earlier: EarlierRun) -> None:
    """Write into a new run's settings.yaml where it started, and which sites had withdrawn."""
    write_settings(folder, {**read_yaml(folder / SETTINGS), STARTED_FROM: earlier.note()})
    if notes := forgotten_by(earlier.folder):
        note_forgotten(folder, [*notes])


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
        If the earlier run had another network, other inputs, frozen weights or code.
    """
    if (run := read_earlier_run(settings, task.facts)) is None:
        return None
    require_same_frozen(model, {**frozen_config(model), **run.signature})
    require_same_code(settings, run.signature)
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
        own = settings.local
        prior = run.prior(wanted, inherited, own.prior_std)
        if own.prior == "earlier_only":
            return Beginning(run, wanted, method_of(settings).start(wanted), prior)
    with as_written(run.folder):
        started, state = method_of(settings).inherit(tensors, inherited)
    return Beginning(run, started, state, prior)
