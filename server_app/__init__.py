"""The Flower ServerApp: settings → strategy → rounds → results on disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from logging import ERROR, INFO, WARNING, LogRecord
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.logger import FLOWER_LOGGER as logger
from flwr.supercore.logger import log

from fedbary.config import BARYCENTRE, Settings, parameters_of, resolve_run_config
from fedbary.errors import RunError, SettingError
from fedbary.folder import require_startable, run_folder
from fedbary.lock import only_writer
from fedbary.runs import RunFolder, changed_bits, checkpoint_to_resume
from server_app import classification, regression
from server_app.recorder import Recorder
from server_app.roster import Roster
from server_app.simulated import end_simulation
from strategies import strategy_for

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the experiment that simulation.yaml and the run config describe."""
    try:
        settings = resolve_run_config(context.run_config)
        run(grid, settings, run_folder(settings, Path.cwd()))
    except (SettingError, RunError) as error:
        log(ERROR, "fedbary: %s", error)
        end_simulation()
        raise


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
    with only_writer(folder):
        _run(grid, settings, folder)


def _run(grid: Grid, settings: Settings, folder: Path) -> None:
    roster = Roster(grid, settings, _task(settings))
    checkpoint = checkpoint_to_resume(folder, settings)
    roster.gather()
    completed = 0
    if checkpoint is None:
        counts = {member.name: member.label_counts for member in roster.members}
        results = RunFolder(folder, settings, counts)
    else:
        completed = checkpoint.round
        for change in changed_bits(folder, settings):
            log(WARNING, "%s: the last bits will differ from the uninterrupted run's", change)
        results = RunFolder.reopened(folder, settings, checkpoint)
        log(INFO, "Goes on after round %d of %s", completed, folder)
    recorder = _recorder(grid, settings, results, roster)
    if checkpoint is not None:
        recorder.model.load_state_dict(dict(checkpoint.arrays))

    def trainers(server_round: int) -> list[int]:
        roster.note_silent(strategy.unanswered)
        return roster.participants(server_round)

    def evaluators(server_round: int) -> list[int]:
        roster.note_silent(strategy.unanswered)
        held_out = settings.holdout > 0 and settings.measures_clients(server_round)
        return roster.present() if held_out else []

    strategy = strategy_for(_named(settings))(
        **_parameters(settings),
        min_replies=settings.min_replies,
        max_skipped=settings.max_skipped,
        max_weight_ratio=settings.weight_bound,
        train_limit=roster.trained_on,
        evaluate_limit=roster.held_out,
        train_metrics_aggr_fn=recorder.on_train,
        evaluate_metrics_aggr_fn=recorder.on_evaluate,
        choose_nodes=trainers,
        choose_evaluators=evaluators,
        name_node=roster.name,
        known_metrics=recorder.known_metrics,
    )
    if checkpoint is not None:
        strategy.load_state_dict(checkpoint.strategy, completed)
    recorder.strategy = strategy
    with only_our_lines():
        strategy.start(
            grid,
            ArrayRecord(recorder.model.state_dict()),
            settings.rounds - completed,
            timeout=settings.round_timeout,
            train_config=ConfigRecord({**recorder.config}),
            evaluate_config=ConfigRecord({**recorder.config}),
            evaluate_fn=recorder.on_round,
        )
    if all(line["skipped"] for line in results.rounds[1:]):
        raise RunError(f"every round was skipped; metrics.jsonl in {folder} says why")
    recorder.finish()
    log(INFO, "Results: %s", folder)


def _named(settings: Settings) -> str:
    """Return the name of the run's strategy: its method's, or of the barycentre its rule's."""
    return settings.rule if settings.method == BARYCENTRE else settings.method


def _parameters(settings: Settings) -> dict[str, Any]:
    """Return the arguments that the run's strategy has beside those of all."""
    if settings.method == BARYCENTRE:
        return {
            "server_momentum": settings.server_momentum,
            "trim_fraction": settings.trim_fraction,
            "max_precision_ratio": settings.precision_bound,
        }
    return {name: getattr(settings, name) for name in parameters_of(settings.method)}


def _task(settings: Settings) -> classification.Task | regression.Columns:
    sees = settings.task == "classification"
    return classification.task_of(settings) if sees else regression.task_of(settings)


def _recorder(grid: Grid, settings: Settings, results: RunFolder, roster: Roster) -> Recorder:
    if settings.task == "classification":
        return classification.ClassificationRecorder(settings, results, roster)
    standardiser = regression.standardiser_of(grid, settings, results, roster)
    return regression.RegressionRecorder(grid, settings, results, roster, standardiser)


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
