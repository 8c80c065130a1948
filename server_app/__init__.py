"""The Flower ServerApp: settings → strategy → rounds → results on disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from logging import ERROR, INFO, WARNING, LogRecord
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from torch import Tensor

from fedbary.attacks import require_simulation
from fedbary.data.digest import Digest
from fedbary.data.shard import Shard
from fedbary.ending import end_with_parent, spare_imports
from fedbary.errors import RunError, SettingError
from fedbary.figures import draw_without_screen
from fedbary.gaussian import Posterior
from fedbary.methods import Bench, arguments_of, method_of, require_method, require_room
from fedbary.runs.best import is_stale
from fedbary.runs.damage import as_written
from fedbary.runs.data_kept import write_digest
from fedbary.runs.location import claimed_folder, require_startable
from fedbary.runs.lock import only_writer
from fedbary.runs.longer import earlier_rates
from fedbary.runs.provenance import changed_bits
from fedbary.runs.resume import checkpoint_to_resume
from fedbary.runs.run_folder import RunFolder
from fedbary.runs.site_keys import read_site_keys, write_site_keys
from fedbary.settings.config import Settings
from fedbary.settings.run_config import resolve_run_config
from fedbary.tasks import Task, task_of
from server_app.grids.guarded import guarded
from server_app.grids.omniscient import attacked
from server_app.grids.watched import watched
from server_app.means import means_of
from server_app.recorder import Recorder
from server_app.roster.asker import Asker
from server_app.roster.roster import Roster
from server_app.roster.simulated import end_simulation
from strategies import CompressedGrid, strategy_for
from strategies.asking import ASKED_KEY, CLIENTS_KEY, COUNTED_KEY, EXAMPLES_KEY
from strategies.internals import FLOWER_LOGGER as logger
from strategies.internals import add_exit_handler, is_simulated, log

app = ServerApp()
spare_imports()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the experiment that simulation.yaml and the run config describe."""
    end_with_parent()
    draw_without_screen()
    try:
        settings = resolve_run_config(context.run_config)
        if not is_simulated(grid):
            require_simulation(settings.attack)
            grid = guarded(grid)
        with claimed_folder(settings, Path.cwd()) as folder:
            run(grid, settings, folder)
    except (SettingError, RunError) as error:
        _say(error)
        if is_simulated(grid):
            end_simulation()
        raise


def _say(error: Exception) -> None:
    """Log what ends a run: now, and once more below all that Flower says of it at its exit."""

    def say() -> None:
        log(ERROR, "fedbary: %s", said)

    said = str(error)
    say()
    add_exit_handler(say)


def run(grid: Grid, settings: Settings, folder: Path) -> None:
    """Train a federation and write its results to `folder`.

    The folder must not exist yet, or, where the settings say `resume`, hold a run that was cut
    off, which then goes on from a checkpoint, or from the start if there is none yet.

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
    with only_writer(folder):
        _run(grid, settings, folder)


def _run(grid: Grid, settings: Settings, folder: Path) -> None:
    simulated, grid = is_simulated(grid), watched(grid, settings.rounds)
    task = task_of(settings)
    signature = task.signature()
    for note in task.notes():
        log(INFO, "%s", note)
    _require_room_for_draws(settings, task.make_model(signature).state_dict())
    checkpoint = checkpoint_to_resume(folder, settings)
    if checkpoint is not None:
        task.require_same_data(folder)
    keys = read_site_keys(folder) if checkpoint else {}
    roster = Roster(grid, settings, signature, keys, simulated)
    roster.gather()
    completed = 0
    if checkpoint is None:
        counts = {member.name: member.label_counts for member in roster.members}
        results = RunFolder(folder, settings, counts)
        results.write_signature(signature.config())
        write_site_keys(folder, roster.keys)
        if digest := _digest(task, roster):
            write_digest(folder, digest)
    else:
        completed = checkpoint.round
        for change in changed_bits(folder, settings):
            log(WARNING, "%s: the last bits will differ from the uninterrupted run's", change)
        results = RunFolder.reopened(folder, settings, checkpoint)
        log(INFO, "Goes on after round %d of %s", completed, folder)
        for said in earlier_rates(folder, settings):
            log(INFO, "%s", said)
    asker = Asker(grid, roster, settings.round_timeout)
    facts = _facts(task, results, asker, [member.node_id for member in roster.members])
    config = {**signature.config(), **{f"fact.{k}": v.tolist() for k, v in facts.items()}}
    packed = None if settings.compress == "none" else CompressedGrid(grid, settings.compress)
    recorder = Recorder(settings, results, roster, facts, packed.traffic if packed else {})
    if checkpoint is not None:
        recorder.model.load_state_dict(dict(checkpoint.arrays))

    asked: list[int] = []

    def trainers(server_round: int) -> list[int]:
        roster.note_silent(strategy.unanswered)
        asked[:] = roster.participants(server_round)
        return list(asked)

    def tell() -> dict[str, int | float]:
        return {
            EXAMPLES_KEY: roster.num_examples,
            CLIENTS_KEY: len(roster.members),
            ASKED_KEY: sum(map(roster.trained_on, asked)),
            COUNTED_KEY: strategy.counted,
        }

    def evaluators(server_round: int) -> list[int]:
        roster.note_silent(strategy.unanswered)
        held_out = settings.holdout > 0 and settings.measures_clients(server_round)
        return roster.evaluators(server_round) if held_out else []

    def after(round_here: int, arrays: ArrayRecord) -> MetricRecord | None:
        server_round = round_here + strategy.completed_rounds
        found = recorder.take(arrays.to_torch_state_dict())
        members = found.members if server_round >= len(results.rounds) else {}
        last = results.rounds[-1] if results.rounds else {}
        write_site_keys(folder, roster.keys)
        told = asker.hold(task.ask_after(members, last), strategy.contributors, config)
        recorded = recorder.record(server_round, told)
        if server_round < settings.rounds and is_stale(settings, results.rounds):
            raise _EarlyStop
        return recorded

    means = means_of(recorder.known_metrics)
    strategy = strategy_for(settings.method)(
        **_parameters(settings, facts),
        min_replies=settings.min_replies,
        max_skipped=settings.max_skipped,
        max_weight_ratio=settings.weight_bound,
        train_limit=roster.trained_on,
        evaluate_limit=roster.held_out,
        train_metrics_aggr_fn=means,
        evaluate_metrics_aggr_fn=means,
        choose_nodes=trainers,
        choose_evaluators=evaluators,
        name_node=roster.name,
        tell=tell,
        known_metrics=recorder.known_metrics,
        listener=recorder,
    )
    if checkpoint is not None:
        strategy.load_state_dict(checkpoint.strategy, completed)
    recorder.strategy = strategy
    try:
        with only_our_lines(), _until_stale(results):
            strategy.start(
                attacked(packed or grid, settings, lambda: roster.members),
                ArrayRecord(recorder.model.state_dict()),
                settings.rounds - completed,
                timeout=settings.round_timeout,
                train_config=ConfigRecord({**config}),
                evaluate_config=ConfigRecord({**config}),
                evaluate_fn=after,
            )
        recorder.finish()
    except BaseException as error:
        recorder.give_up(error)
        raise
    log(INFO, "Results: %s", folder)


def _digest(task: Task, roster: Roster) -> Digest | None:
    """Return the digest of the data, dealt where nodes say so; what they say may be a lie."""
    clients = task.settings.clients
    try:
        dealt = any(member.partitions == clients for member in roster.members)
        return task.digest(clients if dealt else 0)
    except SettingError:
        return task.digest()


def _require_room_for_draws(settings: Settings, model: Mapping[str, Tensor]) -> None:
    """Refuse more samples than the machine can hold of what is drawn of each network."""
    drawn = model if method_of(settings).draws_around else Posterior.from_state_dict(model).log_var
    require_room("samples", settings.samples, drawn)


def _parameters(settings: Settings, facts: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the arguments that the run's strategy has beside those of all."""
    bench = _bench(settings, facts) if method_of(settings).needs_bench else None
    keep = settings.projection != "none"
    return {**arguments_of(settings), "seed": settings.seed, "bench": bench, "keep_models": keep}


def _bench(settings: Settings, facts: Mapping[str, Tensor]) -> Bench:
    """Return a network and the server's own examples, as the network takes them."""
    task = task_of(settings)
    kept = task.server_shard()
    held = task.prepared(kept, facts) if facts else kept
    return Bench(task.make_model(task.signature()), held.x, held.y, task.loss(facts))


def _facts(
    task: Task, results: RunFolder, asker: Asker, nodes: Sequence[int]
) -> Mapping[str, Tensor]:
    """Return what the task learns by asking before the first round, or what the run has learnt."""
    if not task.facts:
        return {}
    if results.rounds:
        return _facts_of(task, results)
    facts = asker.hold(task.ask_first(), nodes, task.signature().config())
    results.write_tensors(task.facts, facts)
    return facts


def _facts_of(task: Task, results: RunFolder) -> Mapping[str, Tensor]:
    """Return what a run has learnt, tried on two inputs of zeros."""
    facts = results.read_tensors(task.facts)
    x = task.zeros(task.signature())
    y = x.new_zeros(len(x))
    with as_written(results.path):
        if any(fact.ndim > 1 for fact in facts.values()):
            raise ValueError(f"{task.facts} holds tables, no rows")
        task.prepared(task.seen(Shard(x, y, x, y)), facts)
    return facts


class _EarlyStop(Exception):
    """Ends the rounds: Flower asks after each of them for nothing but its scores."""


@contextmanager
def _until_stale(results: RunFolder) -> Iterator[None]:
    """Let the rounds end early, and say why."""
    try:
        yield
    except _EarlyStop:
        last, best = results.rounds[-1]["round"], results.result["round"]
        score = f"{results.settings.keep_best} on validation data"
        log(INFO, "Stopped after round %d: %s has not improved since round %d", last, score, best)


@contextmanager
def only_our_lines() -> Iterator[None]:
    """Keep Flower's own account of each round out of the log, for one line a round instead.

    Warnings and errors stay, whoever logs them.
    """

    def ours(record: LogRecord) -> bool:
        return record.levelno > INFO or "server_app" in Path(record.pathname).parts

    logger.addFilter(ours)
    try:
        yield
    finally:
        logger.removeFilter(ours)
