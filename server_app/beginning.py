"""The beginning of a run: its folder, new or reopened, and its task's first questions."""

from __future__ import annotations

from collections.abc import Mapping
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord
from torch import Tensor

from fedbary.data.deal import Shard
from fedbary.data.digest import Digest
from fedbary.errors import SettingError
from fedbary.runs.checkpoints import Checkpoint
from fedbary.runs.data_kept import write_digest
from fedbary.runs.location import as_written, changed_settings
from fedbary.runs.provenance import changed_bits
from fedbary.runs.resume import earlier_rates
from fedbary.runs.run_folder import RunFolder
from fedbary.runs.sites import write_site_keys
from fedbary.server_app.recorder import Recorder, draw_partition
from fedbary.server_app.roster.asker import Asker
from fedbary.server_app.roster.roster import Roster
from fedbary.settings.combinations import has_earlier_prior
from fedbary.settings.config import Settings
from fedbary.strategies.internals import log
from fedbary.tasks import Task
from fedbary.trained.started_from import PRIOR, Beginning, note_start

CLASS_ROWS = "class_rows"
"""The fact that depends on a run's own data, and is no unit: how many rows each class has."""


def new_folder(
    folder: Path,
    settings: Settings,
    task: Task,
    roster: Roster,
    agreed: Mapping[str, Any],
    beginning: Beginning | None,
) -> RunFolder:
    """Return a run's folder, with the facts before its first round.

    `agreed` holds the messages' entries on the data and the model.
    """
    counts = {member.name: member.label_counts for member in roster.members}
    own_data = all(member.partition < 0 for member in roster.members)
    results = RunFolder(folder, settings, counts, own_data)
    if settings.pictures:
        draw_partition(results, counts, agreed.get("class-names", ()))
    if beginning is not None:
        note_start(folder, beginning.run)
        if beginning.prior is not None:
            results.write_tensors(PRIOR, beginning.prior.state_dict())
    results.write_signature(agreed)
    write_site_keys(folder, roster.keys)
    if digest := dealt_digest(task, roster):
        write_digest(folder, digest)
        dealt = any(member.partitions == settings.clients for member in roster.members)
        for line in task.repeated(digest, settings.clients if dealt else 0):
            log(WARNING, "%s", line)
    return results


def reopened_folder(folder: Path, settings: Settings, checkpoint: Checkpoint) -> RunFolder:
    """Return a resumed run's folder; the log names the checkpoint and changes."""
    for change in changed_bits(folder, settings):
        log(WARNING, "%s: the last bits will differ from the uninterrupted run's", change)
    for name, (old, new) in changed_settings(folder, settings).items():
        log(WARNING, "%s was %s, and is %s from round %d on", name, old, new, checkpoint.round + 1)
    results = RunFolder.reopened(folder, settings, checkpoint)
    log(INFO, "Goes on after round %d of %s", checkpoint.round, folder)
    for said in earlier_rates(folder, settings):
        log(INFO, "%s", said)
    return results


def read_prior(settings: Settings, results: RunFolder) -> ArrayRecord | None:
    """Return the earlier posterior that is the prior, as the run's folder keeps it."""
    if not has_earlier_prior(settings):
        return None
    return ArrayRecord(results.read_tensors(PRIOR))


def warm_start(recorder: Recorder, beginning: Beginning) -> None:
    """Let the recorder's model and strategy begin with an earlier run; the log says with which."""
    recorder.model.load_state_dict({**beginning.model})
    with as_written(beginning.run.folder):
        recorder.strategy.begin(ArrayRecord({**beginning.model}), beginning.state)
    log(INFO, "Starts from round %d of %s", beginning.run.round, beginning.run.folder)


def dealt_digest(task: Task, roster: Roster) -> Digest | None:
    """Return the digest of the data, dealt if nodes say so; their claims are not trusted."""
    clients = task.settings.clients
    try:
        dealt = any(member.partitions == clients for member in roster.members)
        return task.digest(clients if dealt else 0)
    except SettingError:
        return task.digest()


def facts_of(
    task: Task,
    results: RunFolder,
    asker: Asker,
    roster: Roster,
    beginning: Beginning | None,
    agreed: Mapping[str, Any],
) -> Mapping[str, Tensor]:
    """Return the facts that the task asks for before the first round, or those that the run kept.

    A run that starts from another keeps that run's units, because the posterior is in them. The
    sites of a table are asked all the same, to compare them.
    `agreed` goes with each question.
    """
    if not task.facts:
        return {}
    if results.rounds:
        return _read_facts(task, results)
    facts = {} if beginning is None else {**beginning.run.facts}
    if not facts or facts.pop(CLASS_ROWS, None) is not None or task.numbers:
        nodes = [member.node_id for member in roster.members]
        facts = {**asker.hold(task.ask_first(), nodes, agreed), **facts}
    results.write_tensors(task.facts, facts)
    for line in task.idle(facts):
        log(WARNING, "%s", line)
        asker.cautions.append(line)
    return facts if beginning is None else _read_facts(task, results)


def _read_facts(task: Task, results: RunFolder) -> Mapping[str, Tensor]:
    """Return a run's kept facts, tried on two inputs of zeros."""
    facts = results.read_tensors(task.facts)
    x = task.zeros(task.signature())
    y = x.new_zeros(len(x))
    with as_written(results.path):
        if any(fact.ndim > 1 for fact in facts.values()):
            raise ValueError(f"{task.facts} holds tables, no rows")
        task.prepared(task.seen(Shard(x, y, x, y)), facts)
    return facts
