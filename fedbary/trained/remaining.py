"""The folder of a run without one of its sites: a run of one round of the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor, nn

from fedbary.methods import method_of
from fedbary.parts.parameters import told
from fedbary.predictive.conformal import Thresholds, together
from fedbary.runs import schema
from fedbary.runs.conformal_kept import read_sites, write_conformal
from fedbary.runs.data_kept import read_digest, write_digest
from fedbary.runs.failing import advised
from fedbary.runs.location import SETTINGS
from fedbary.runs.provenance import write_settings
from fedbary.runs.run_folder import BACKGROUND, NETWORKS, RunFolder, read_layout, read_signature
from fedbary.runs.sites import read_site_keys, write_site_keys
from fedbary.settings.config import Settings, read_yaml
from fedbary.settings.modes import Clocked
from fedbary.settings.task_words import OfGuarantees
from fedbary.tasks import Dialogue, Outcome, Task, edges, risks, row_names, task_of
from fedbary.trained.started_from import METHOD_STATE, STARTED_FROM

_Found = TypeVar("_Found")


@dataclass(frozen=True, eq=False)
class Remaining:
    """What remains of a run without a site.

    Attributes
    ----------
    model, state : mapping of str to Tensor
        The global model, and the method's state at the server.
    facts : mapping of str to Tensor
        Facts that the task has learnt by asking.
    sites : mapping of str to float
        Number of examples of each remaining site.
    examples : float
        Number of examples of the site that is gone.
    """

    model: Mapping[str, Tensor]
    state: Mapping[str, Tensor]
    facts: Mapping[str, Tensor]
    sites: Mapping[str, float]
    examples: float


def write_remaining(
    folder: Path, run: Path, site: str, settings: Settings, left: Remaining
) -> None:
    """Fill a folder with a one-round run of the remaining sites of another.

    Parameters
    ----------
    folder : Path
        Empty, or new.
    run : Path
        The folder of the run of all sites.
    site : str
        Name of the site that is gone; nothing of it is written.
    settings : Settings
        Settings of the new run.
    left : Remaining
        Rest of the old run.
    """
    content = read_yaml(run / SETTINGS)
    counts = dict(zip(content["sites"], content["label_counts"], strict=True))
    results = RunFolder(folder, settings, {n: c for n, c in counts.items() if n != site})
    if start := content.get(STARTED_FROM):
        write_settings(folder, {**read_yaml(folder / SETTINGS), STARTED_FROM: start})
    task = task_of(settings)
    results.write_signature(read_signature(run))
    keys = read_site_keys(run)
    write_site_keys(folder, {n: key for n, key in keys.items() if key != keys.get(site)})
    if (digest := read_digest(run)) is not None:
        write_digest(folder, digest)
    if left.facts:
        results.write_tensors(task.facts, left.facts)
    known = read_layout(run, task.signature_from)
    network = task.make_model(known)
    results.add_round(_line(0, network, {}, task, left, counts))
    network.load_state_dict(dict(left.model))
    results.add_round(_line(1, network, left.state, task, left, counts))
    held = {METHOD_STATE + name: tensor for name, tensor in left.state.items()}
    results.add_checkpoint(left.model, held)
    by = method_of(settings).predictive(left.model, left.state)
    if by.members:
        results.write_tensors(NETWORKS, by.members)
    if by.background:
        results.write_tensors(BACKGROUND, by.background.tensors())
    results.finish(by.posterior)
    _write_sets(folder, run, site, settings, known)


def _write_sets(folder: Path, run: Path, site: str, settings: Settings, signature: Any) -> None:
    """Write the thresholds of the other sites' histograms, which are of the run's own model."""
    level = told(OfGuarantees, settings).conformal
    sites = read_sites(run, len(row_names(settings, signature)), risks(signature))
    sites.pop(site, None)
    if level is not None and sites:
        found = Thresholds(level, together(sites.values()).scores)
        write_conformal(folder, found, sites, edges(settings, signature, found), {}, {})


def _line(
    number: int,
    network: nn.Module,
    state: Mapping[str, Tensor],
    task: Task,
    left: Remaining,
    counts: Mapping[str, list[int]],
) -> dict[str, Any]:
    """Return the line of a round, scored on the server's test data if it has some."""
    by = method_of(task.settings).predictive(network.state_dict(), state)
    answers = _unanswered(task.ask_after(by.members, {}))
    by = replace(by, noise_var=float(answers.get(schema.NOISE_VAR, 0.0)))
    known = [of_class for name, of_class in counts.items() if name in left.sites and of_class]
    every = [sum(column) for column in zip(*known, strict=True)]
    scored = task.scores(Outcome(number, network, by, answers, [], every), left.facts)
    line: dict[str, Any] = {
        schema.ROUND: number,
        **scored.scores,
        schema.SECONDS: 0.0,
        schema.LOG_VAR: {},
        schema.SKIPPED: False,
        **answers,
        **scored.line,
    }
    if told(Clocked, task.settings).speeds != "none":
        line[schema.VIRTUAL_SECONDS] = 0.0
    if number:
        clients = [{"site": name, "num-examples": int(n)} for name, n in left.sites.items()]
        line |= {schema.ADMITTED: len(clients), schema.REFUSED: [], schema.UNANSWERED: []}
        line[schema.CLIENTS] = clients
    if by.members:
        line[schema.MEMBERS] = len(next(iter(by.members.values())))
    return {**advised(line, task.settings)}


def _unanswered(dialogue: Dialogue[_Found]) -> _Found:
    """Return the result of a dialogue that no site answers."""
    try:
        next(dialogue)
        while True:
            dialogue.send([])
    except StopIteration as end:
        found: _Found = end.value
        return found
