"""A federation's run at the server: settings → strategy → rounds → results on disk."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from logging import ERROR, INFO, WARNING
from pathlib import Path
from typing import Any, cast

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid
from torch import Tensor

from fedbary.attacks import require_simulation
from fedbary.data.deal import evaluation_data
from fedbary.data.digest import checksum
from fedbary.data.forms import one_state, user_path
from fedbary.errors import RunError, SettingError, last_words
from fedbary.figures import draw_without_screen
from fedbary.methods import require_method
from fedbary.runs.ending import end_with_parent, spare_imports
from fedbary.runs.location import (
    claimed_folder,
    is_whole,
    only_writer,
    read_rounds,
    require_startable,
)
from fedbary.runs.own_code import code_config
from fedbary.runs.resume import checkpoint_to_resume, lengthen_locked, way_back
from fedbary.runs.run_folder import read_signature
from fedbary.runs.schema import CLIENTS, ROUND, unshared
from fedbary.runs.sites import forgotten_sites, left_out_sites, read_site_keys
from fedbary.server_app.beginning import (
    facts_of,
    new_folder,
    read_prior,
    reopened_folder,
    warm_start,
)
from fedbary.server_app.calibrating import calibrate
from fedbary.server_app.clocked import clock_of, require_room_for_draws, rounds_of, strategy_of
from fedbary.server_app.grids import Guarded, Recorded, attacked, guarded, watched
from fedbary.server_app.recorder import Recorder
from fedbary.server_app.roster.asker import Asker
from fedbary.server_app.roster.member import Member, left_out_of, require_enough
from fedbary.server_app.roster.roster import Roster, end_simulation
from fedbary.server_app.rounds import only_our_lines, until_stale
from fedbary.settings.config import Settings, resolve
from fedbary.settings.modes import Synchronous, require_real_time, require_virtual_time
from fedbary.settings.run_config import given_in
from fedbary.strategies import CompressedGrid
from fedbary.strategies.admission import Stalled
from fedbary.strategies.internals import at_exit, is_simulated, log
from fedbary.tasks import Task, task_of
from fedbary.trained.started_from import beginning_of
from fedbary.variational.frozen import frozen_config, require_same_frozen

spare_imports()

POLL_SECONDS = 0.02
"""Seconds after which a simulation's server looks again for replies; Flower's 0.1 cost a round."""


def main(grid: Grid, context: Context) -> None:
    """Run the experiment that simulation.yaml and the run config describe."""
    with begun(grid):
        simulated = is_simulated(grid)
        given = given_in(context.run_config)
        whole = Settings.model_fields.keys() <= given.keys()  # fedbary simulate gives them all
        bare = simulated and not whole
        settings = settings_with(given, count_nodes(grid)) if bare else resolve(given)
        if not simulated:
            require_simulation(settings.attack)
            require_real_time(settings)
            grid = guarded(grid)
        with claimed_folder(settings, Path.cwd()) as folder:
            if not whole:
                log(INFO, "%s", place_of(settings, folder))
            run(grid, settings, folder)


@contextmanager
def begun(grid: Grid) -> Iterator[None]:
    """Let this process end with its parent; log what ends it, once more at exit."""
    end_with_parent()
    draw_without_screen()
    try:
        yield
    except Exception as error:
        if said := last_words(error):
            _say(said)
            if is_simulated(grid):
                end_simulation()
        raise


def place_of(settings: Settings, folder: Path) -> str:
    """Return the line on where a run's results will lie, and why there.

    `flwr run` does not tell where the user stands.
    """
    said = f"Results will be in {folder}"
    if user_path(settings.output).is_absolute():
        return said
    where = f"Flower's SuperLink was started in {Path.cwd()}"
    return f"{said}: {where}; output='/…' names another folder"


def count_nodes(grid: Grid) -> int:
    """Return the number of nodes of a simulation, once it has not grown for `SETTLED_SECONDS`.

    Flower registers them while the server's app starts. `require_counted` checks the number.
    """
    before, nodes, end = -1, len([*grid.get_node_ids()]), time.monotonic() + MOST_SECONDS
    while (nodes == 0 or nodes != before) and time.monotonic() < end:
        time.sleep(SETTLED_SECONDS)
        before, nodes = nodes, len([*grid.get_node_ids()])
    return nodes


def require_counted(clients: int, members: Iterable[Member]) -> None:
    """Raise a RunError unless a simulation has as many clients as were counted."""
    if others := {member.partitions for member in members} - {0, clients}:
        said = f"{clients} of {max(others)} clients were there when they were counted"
        raise RunError(f"{said}; start the run again")


def settings_with(given: Mapping[str, Any], nodes: int) -> Settings:
    """Return the settings of a run that Flower simulates; `clients` is the number of its nodes.

    Parameters
    ----------
    given
        The settings that its run config gives.
    nodes
        The number of nodes.

    Raises
    ------
    SettingError
        If the settings are not allowed, or ask for what only Flower's federation can give.
    """
    for name, option in SHARES.items():
        if name in given:
            allowed = f"no value in flwr run; --federation-config '{option}={given[name]}' sets it"
            raise SettingError(name, given[name], allowed)
    asked = given.get("clients", nodes)
    flag = "--federation-config 'num-supernodes="
    if str(asked) != str(nodes):
        allowed = f"{nodes}, as Flower's federation has; {flag}{asked}' changes that"
        raise SettingError("clients", asked, allowed)
    if "clients" not in given:
        log(INFO, "Flower's federation has %d clients; %s…' changes that", nodes, flag)
    return resolve({**given, "clients": nodes})


SETTLED_SECONDS, MOST_SECONDS = 0.2, 60.0
"""Seconds for which the number of nodes must stay the same, and to wait for that at most."""

SHARES = {
    "cpus_per_client": "client-resources-num-cpus",
    "gpus_per_client": "client-resources-num-gpus",
}
"""Settings that do not reach Ray in `flwr run`, with Flower's own options."""


def _say(said: str) -> None:
    """Log a run's error now, and once more below Flower's own lines at exit."""

    def say() -> None:
        log(ERROR, "fedbary: %s", said)

    say()
    at_exit(say)


def run(grid: Grid, settings: Settings, folder: Path) -> None:
    """Train a federation and write its results to `folder`.

    The folder must not exist yet. With `resume` it may hold a run that was cut off, which goes on
    from a checkpoint, or from the start if there is none yet.

    Raises
    ------
    SettingError
        If the settings, the data or the folder do not allow it.
    RunError
        If the run ends without a result, another process writes to the folder, or there is no
        room to write.
    """
    require_startable(folder, settings)
    require_method(settings)
    with only_writer(folder), one_state():
        _run(grid, settings, folder)


def _same_as_server(task: Task, roster: Roster) -> Iterator[str]:
    """Yield a line, and log it, if sites' own data are the server's."""
    told = {member.name: member.content for member in roster.members if member.partition < 0}
    if task.settings.dataset == "none" or not any(told.values()):
        return
    own = checksum(*task.held.examples)
    tested = len(evaluation_data(task.held, task.deal)[1])
    if tested and (same := sorted(name for name, content in told.items() if content == own)):
        said = f"{', '.join(same)}: the same data as the server's, whose test rows train there"
        log(WARNING, "%s: scores on new rows may be worse", said)
        yield f"{said}: scores on new rows may be worse"


def _told_last(
    recorder: Recorder, roster: Roster, asker: Asker, config: Mapping[str, Any]
) -> dict[str, Tensor]:
    """Put the task's last questions to the sites; return what they tell, and when.

    Those are the last round's. Where a round is of some sites, they are those of any round.
    """
    settings, nodes = recorder.settings, recorder.strategy.contributors
    if settings.mode != "rounds" or settings.participants < settings.clients:
        heard = {each["site"] for line in recorder.results.rounds for each in line.get(CLIENTS, ())}
        nodes = [node for node in roster.present if roster.name(node) in heard]
    nodes = nodes or roster.present
    questions = recorder.task.ask_last(recorder.model, recorder.facts)
    found = asker.hold(questions, nodes, config)
    at = torch.tensor([float(recorder.results.result[ROUND])])
    return {**found, ROUND: at} if found else {}


def _run(grid: Grid, settings: Settings, folder: Path) -> None:
    simulated = is_simulated(grid)
    if not isinstance(grid, Guarded):
        require_virtual_time(settings)
    if simulated:
        grid.pull_interval = POLL_SECONDS  # type: ignore[attr-defined]
    record = Recorded(grid, folder)
    grid = watched(cast(Grid, record), settings.rounds)
    task = task_of(settings)
    signature = task.signature()
    for note in task.notes():
        log(INFO, "%s", note)
    model = task.make_model(signature)
    require_room_for_draws(settings, model.state_dict())
    agreed = {**signature.config(), **code_config(settings)}
    config = {**agreed, **frozen_config(model)}

    checkpoint = checkpoint_to_resume(folder, settings)
    if checkpoint is not None:
        task.require_same_data(folder)
        require_same_frozen(model, {**config, **read_signature(folder)})
    beginning = None if checkpoint else beginning_of(settings, task, signature, model)
    before = folder if checkpoint else beginning.run.folder if beginning else None
    keys = read_site_keys(before) if before else {}
    forgotten = forgotten_sites(before) if before else ()
    left_out = left_out_of(settings, forgotten, left_out_sites(folder) if checkpoint else ())
    roster = Roster(
        grid,
        settings,
        signature,
        keys,
        simulated,
        left_out,
        agreed,
        task.content,
        noted=record.left_out,
    )
    roster.gather()
    if simulated:
        require_counted(settings.clients, roster.members)
    clock = clock_of(settings, roster)
    if checkpoint is None:
        require_enough(settings, roster.members)
        results = new_folder(folder, settings, task, roster, config, beginning)
    else:
        if is_whole(folder):
            lengthen_locked(folder, settings)
        results = reopened_folder(folder, settings, checkpoint)
        record.note("resumed", round=checkpoint.round)
    record.begin()

    asker = Asker(grid, roster, settings.round_timeout)
    facts = facts_of(task, results, asker, roster, beginning, agreed)
    config |= {f"fact.{k}": v.tolist() for k, v in facts.items()}
    way = settings.pace.compress if isinstance(settings.pace, Synchronous) else "none"
    packed = None if way == "none" else CompressedGrid(grid, way)
    recorder = Recorder(settings, results, roster, facts, packed.traffic if packed else {})
    recorder.cautions = [*roster.copies, *_same_as_server(task, roster), *asker.cautions]
    rounds = rounds_of(roster, asker, recorder, config, clock)
    recorder.strategy = strategy_of(recorder, rounds, clock, read_prior(settings, results))
    completed = 0
    if checkpoint is not None:
        completed = checkpoint.round
        recorder.model.load_state_dict(checkpoint.arrays)
        recorder.strategy.load_state_dict(checkpoint.strategy, completed)
    if beginning is not None:
        recorder.unshared |= unshared(read_rounds(beginning.run.folder))
        warm_start(recorder, beginning)

    try:
        with only_our_lines(), until_stale(results):
            recorder.strategy.start(
                attacked(packed or grid, settings, lambda: roster.members),
                ArrayRecord(recorder.model.state_dict()),
                settings.rounds - completed,
                timeout=settings.round_timeout,
                train_config=ConfigRecord({**config}),
                evaluate_config=ConfigRecord({**config}),
                evaluate_fn=rounds.after,
            )
        recorder.settle()
        calibrate(recorder, roster, asker, config)
        recorder.finish(_told_last(recorder, roster, asker, config))
    except BaseException as error:
        recorder.give_up(error)
        record.note("stopped", reason=type(error).__name__)
        if isinstance(error, Stalled):
            raise RunError(f"{error}: {way_back(folder, settings, error.round)}") from None
        raise
    record.note("end")
    log(INFO, "Results: %s", folder)
