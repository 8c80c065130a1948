"""A site that withdraws: the run of a method of sums without it, exact to rounding.

The server holds the sums of each site. The other sites' sums give the model of a run without the
site. But the standardisation counted the site too. If a linear model sees the features as they are,
the other sites' sums also give the standardisation without the site, and are converted to it.

Full Laplace sites hold each site's whole curvature. The site is divided out, and further rounds end
at the mode of the others. Other factors depend on the sites beside which they were found.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor, nn

from fedbary.aggregation.sums import select_prefix
from fedbary.data.standardise import Standardiser, renewed
from fedbary.errors import SettingError
from fedbary.methods import METHODS, Server, method_of
from fedbary.methods._method import age, whose
from fedbary.methods._sums import SHARES, SumsMethod, head_names, sites_of, state_of, total_of
from fedbary.methods.conjugategaussian import ConjugateGaussian
from fedbary.methods.pvi import PVI
from fedbary.predictive.conformal import Thresholds, together
from fedbary.runs import schema
from fedbary.runs.checkpoints import Checkpoint
from fedbary.runs.commit import git_commit
from fedbary.runs.conformal_kept import read_sites, write_conformal
from fedbary.runs.data_kept import read_digest, write_digest
from fedbary.runs.failing import advised
from fedbary.runs.location import (
    SETTINGS,
    UNUSED,
    as_written,
    is_deployed,
    read_rounds,
    read_settings,
)
from fedbary.runs.own_code import require_trusted
from fedbary.runs.provenance import write_settings
from fedbary.runs.resume import require_ended, rounds_before, sound_checkpoint
from fedbary.runs.run_folder import (
    BACKGROUND,
    NETWORKS,
    RunFolder,
    read_layout,
    read_signature,
    tensors_of,
)
from fedbary.runs.schema import CLIENTS
from fedbary.runs.sites import forgotten_by, note_forgotten, read_site_keys, write_site_keys
from fedbary.seeds import derive_seed
from fedbary.settings.config import ROOT, Settings, read_yaml, validated
from fedbary.settings.task_words import OfClasses, OfGuarantees
from fedbary.tasks import Dialogue, Outcome, Task, edges, risks, row_names, task_of
from fedbary.trained.started_from import METHOD_STATE, STARTED_FROM
from fedbary.trained.writing import require_free, written_whole

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
    own_data = UNUSED in content
    results = RunFolder(folder, settings, {n: c for n, c in counts.items() if n != site}, own_data)
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
    for number, state in enumerate(({}, left.state)):
        line = _line(number, network, state, task, left, counts)
        results.add_round({**advised(line, settings, dealt=not own_data)})
        network.load_state_dict(dict(left.model))
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
    level = settings.of_task(OfGuarantees).conformal
    sites = read_sites(run, len(row_names(settings, signature)), risks(signature))
    sites.pop(site, None)
    if level is not None and sites:
        all_ = together(sites.values())
        found = Thresholds(level, all_.scores, repeated=all_.repeated)
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
    if task.settings.pace.has_clock:
        line[schema.VIRTUAL_SECONDS] = 0.0
    if number:
        clients = [{"site": name, "num-examples": int(n)} for name, n in left.sites.items()]
        line |= {schema.ADMITTED: len(clients), schema.REFUSED: [], schema.UNANSWERED: []}
        line[schema.CLIENTS] = clients
    if by.members:
        line[schema.MEMBERS] = len(next(iter(by.members.values())))
    return line


def _unanswered(dialogue: Dialogue[_Found]) -> _Found:
    """Return the result of a dialogue that no site answers."""
    try:
        next(dialogue)
        while True:
            dialogue.send([])
    except StopIteration as end:
        found: _Found = end.value
        return found


_Site = tuple[float, Mapping[str, Tensor]]
"""A site's number of examples, and the means over them."""

MORE_ROUNDS = "further rounds bring them to where they are without it"

NEAR = 1e-3
"""Tolerance by rounding of standardised columns: mean from 0, mean square from 1."""


def place_beside(run: Path, site: str) -> Path:
    """Return the folder beside a run's that a run without a site is written to by default."""
    name = re.sub(r"[^\w.=]+", "-", site).strip("-.")
    return run.resolve().with_name(f"{run.resolve().name}-without-{name}")


def forget(run: Path, site: str, output: Path, own_code: bool = False) -> list[str]:
    """Write the run of one round that a federation without a site would have made.

    The run itself stays as it is. The new folder is written whole or not at all; its settings.yaml
    notes under `forgotten` the site, its examples, and the run and the round that counted it.

    Parameters
    ----------
    run : Path
        The folder of a run that has ended, of a method of sums or of full Laplace sites.
    site : str
        The site's name, as the run's log has it.
    output : Path
        The folder to write.
    own_code : bool
        As in `fedbary.trained.load`.

    Returns
    -------
    list of str
        Remarks, a line each.

    Raises
    ------
    SettingError
        If the run is of another method, or its standardisation cannot be found without the site; if
        there is no such site, it is already forgotten, or it is the last; if the folder exists.
    """
    with as_written(run):
        require_ended(run)
        held = read_settings(run)
        require_trusted(held, run, own_code)
        settings = validated({**held, "resume": "last"})
        method = method_of(settings)
        of_sites = isinstance(method, PVI) and method.covariance == "full"
        if not of_sites:
            _require_sums(settings)
        earlier = [made["rounds"] for made in rounds_before(run)]
        checkpoint = sound_checkpoint(run, settings, earlier)
        notes = forgotten_by(run)
    require_free([output], force=False)
    if site in [note["site"] for note in notes]:
        raise SettingError("site", site, f"one that {run} has not forgotten already")
    task = task_of(settings)
    task.require_same_data(run)
    left = (_divided if of_sites else _without)(site, checkpoint, settings, _facts(run, task))
    if of_sites:
        counted = _examples(run)
        left = replace(left, examples=counted.pop(site, 0.0), sites=counted)
    note = {
        "site": site,
        "examples": int(left.examples),
        "run": run.resolve().name,
        "round": checkpoint.round,
        "commit": git_commit(ROOT),
        "at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
    held = {"rounds": 1, "resume": "none", "output": str(output.resolve())}
    with written_whole(output) as folder:
        write_remaining(folder, run, site, settings.model_copy(update=held), left)
        note_forgotten(folder, [*notes, note])
    said = [f"{run} still holds the sums of {site}: delete it to be rid of them"]
    if settings.start_from != "none":
        said.append(f"So may {settings.start_from}, from which the run started")
    if of_sites:
        said[0] = said[0].replace("the sums", "the factor")
        said.append(f"The other sites' factors were found beside that of {site}: {MORE_ROUNDS}")
    again = "another run" if is_deployed(run) else f"fedbary resume {output} rounds=2"
    if settings.of_task(OfClasses).calibrate != "none":
        said.append(f"Its temperature counted {site} and is gone: {again} finds one without it")
    if settings.of_task(OfGuarantees).conformal is not None:
        scored = f"by the model that counted {site}"
        said.append(f"Its sets are of the other sites' scores {scored}: {again} makes new ones")
    return said


def _divided(
    site: str, checkpoint: Checkpoint, settings: Settings, facts: Mapping[str, Tensor]
) -> Remaining:
    """Return the rest of a run of full sites without one of them, in the units of all."""
    method = method_of(settings)
    assert isinstance(method, PVI)
    server = Server(checkpoint.arrays, select_prefix(METHOD_STATE, checkpoint.strategy))
    model, state = method.expanded.without(server, site)
    method.check_state(model, state)
    return Remaining(model, state, facts, {}, 0.0)


def _examples(run: Path) -> dict[str, float]:
    """Return the examples of each site that has replied, by the lines of a run's rounds."""
    clients = [each for line in read_rounds(run) for each in line.get(CLIENTS, [])]
    return {each["site"]: float(each["num-examples"]) for each in clients}


def _require_sums(settings: Settings) -> None:
    if not isinstance(method_of(settings), SumsMethod):
        known = ", ".join(name for name, kind in METHODS.items() if issubclass(kind, SumsMethod))
        allowed = f"{known}, or PVI with covariance=full: the server of another run holds nothing "
        allowed += "of a site that does not depend on the others"
        raise SettingError("method", settings.method, allowed)
    if settings.max_weight_ratio != "none":
        allowed = "none: with a limit, each site's weight depends on the other sites"
        raise SettingError("max_weight_ratio", settings.max_weight_ratio, allowed)


def _without(
    site: str, checkpoint: Checkpoint, settings: Settings, facts: Mapping[str, Tensor]
) -> Remaining:
    """Return the rest of a run without a site."""
    method = method_of(settings)
    assert isinstance(method, SumsMethod)
    held = select_prefix(METHOD_STATE, checkpoint.strategy)
    sites, names = sites_of(held), sorted({*map(whose, sites_of(held))})
    if site not in names:
        raise SettingError("site", site, f"one whose sums the run holds: {', '.join(names)}")
    if len(names) == 1:
        raise SettingError("site", site, "one of several sites; this is the run's only one")
    others: Mapping[str, _Site] = {n: sums for n, sums in sites.items() if whose(n) != site}
    examples = sum(weight for name, (weight, _) in sites.items() if whose(name) == site)
    if facts:
        _require_told_by_sums(method, held, checkpoint.arrays, facts)
        facts, others = _restandardised(method, others, facts)
    server = Server(checkpoint.arrays, {}, 1, derive_seed(settings.seed, "server", 1))
    model, state = method.model_of(server, state_of(others))
    method.check_state(model, state)
    weights = dict.fromkeys(map(whose, others), 0.0)
    for name, (weight, _) in others.items():
        weights[whose(name)] += weight
    return Remaining(model, state, facts, weights, examples)


def _require_told_by_sums(
    method: SumsMethod,
    state: Mapping[str, Tensor],
    model: Mapping[str, Tensor],
    facts: Mapping[str, Tensor],
) -> None:
    """Raise an error if the sums do not give the standardisation without one of the sites."""
    why = ""
    if "fill" in facts:
        why = "missing= mean, median or indicator: all sites' cells give what fills the empty ones"
    elif more := facts.keys() - {"mean", "std", "class_rows"}:
        why = f"{min(more)}, which every site has told"
    elif sum(t.ndim > 1 for t in model.values()) > 1:
        why = f"standardised inputs before the layer {head_names(model)[0]}"
    elif method.max_norm:
        why = "features that max_norm has shortened"
    else:
        first = state_of(_of_first_run(sites_of(state)))
        mean, squares = _by_fact(method.columns(total_of(first)[1]), facts)
        usual = (squares - 1).abs() <= NEAR
        if not ((mean.abs() <= NEAR) & (usual | (squares <= NEAR))).all():
            why = "standardised inputs of other examples than it has the sums of"
    if why:
        allowed = "a run that is standardised by its sums; begin a new run without the site"
        raise SettingError("run", f"a run with {why}", allowed)


def _restandardised(
    method: SumsMethod,
    sites: Mapping[str, _Site],
    facts: Mapping[str, Tensor],
) -> tuple[dict[str, Tensor], dict[str, _Site]]:
    """Return the standardisation of some sites, and their sums of columns in its unit.

    It is that of the first run that had any of them: later runs keep its units.
    """
    count, means = total_of(state_of(_of_first_run(sites)))
    mean, squares = _by_fact(method.columns(means), facts)
    scale, factor = renewed(Standardiser(facts["mean"], facts["std"]), mean, squares)
    if isinstance(method, ConjugateGaussian) and scale.std[-1].isinf():
        raise SettingError("site", "targets of the others that are all equal", "targets that vary")
    each = len(method.columns(means)[0]) // len(mean)
    shift, factor = mean.repeat_interleave(each), factor.repeat_interleave(each)
    moved: dict[str, _Site] = {
        name: (weight, method.rescaled(sums, shift, factor))
        for name, (weight, sums) in sites.items()
    }
    found = {"mean": scale.mean, "std": scale.std}
    if "class_rows" in facts:
        found["class_rows"] = (count * means[SHARES]).round()
    return found, moved


def _of_first_run(sites: Mapping[str, _Site]) -> dict[str, _Site]:
    """Return the sums of the oldest run."""
    oldest = max(map(age, sites))
    return {name: sums for name, sums in sites.items() if age(name) == oldest}


def _by_fact(columns: tuple[Tensor, Tensor], facts: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return mean and mean square of each fact's columns; a channel's are over its pixels."""
    mean, squares = (values.view(len(facts["mean"]), -1).mean(1) for values in columns)
    return mean, squares


def _facts(run: Path, task: Task) -> Mapping[str, Tensor]:
    return tensors_of(run, task.facts) if task.facts else {}
