"""The strategy of a run, with its method's own arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr.app import ArrayRecord
from torch import Tensor

from fedbary.gaussian import Posterior
from fedbary.methods import Bench, arguments_of, method_of, require_room
from fedbary.runs.journal import journal_of
from fedbary.settings.config import Settings
from fedbary.settings.modes import mode_of, replays
from fedbary.tasks import task_of
from server_app.clocked import Clock
from server_app.means import means_of
from server_app.recorder import Recorder
from server_app.rounds import Rounds
from strategies import MethodStrategy, strategy_for


def strategy_of(
    recorder: Recorder, rounds: Rounds, clock: Clock | None, prior: ArrayRecord | None = None
) -> MethodStrategy:
    """Return the strategy that the run's settings choose, with its callbacks."""
    settings, roster = recorder.settings, recorder.roster
    means = means_of(recorder.known_metrics)
    kind = strategy_for(settings.method)
    own = _parameters(settings, recorder.facts)
    if settings.mode == "async":
        own["asynchronous"] = mode_of(settings)
        own["seconds"] = clock.seconds if clock else None
        own["journal"] = journal_of(settings) if replays(settings) else None
    return kind(
        **own,
        min_replies=settings.min_replies,
        max_skipped=settings.max_skipped,
        max_weight_ratio=settings.weight_bound,
        train_limit=roster.trained_on,
        evaluate_limit=roster.held_out,
        train_metrics_aggr_fn=means,
        evaluate_metrics_aggr_fn=means,
        choose_nodes=rounds.trainers,
        choose_evaluators=rounds.evaluators,
        name_node=roster.name,
        tell=rounds.tell,
        known_metrics=recorder.known_metrics,
        listener=recorder,
        prior_arrays=prior,
    )


def require_room_for_draws(settings: Settings, model: Mapping[str, Tensor]) -> None:
    """Refuse more samples than the machine's memory can hold."""
    drawn = model if method_of(settings).draws_around else Posterior.from_state_dict(model).log_var
    require_room("samples", settings.samples, drawn)


def bench_of(settings: Settings, facts: Mapping[str, Tensor]) -> Bench:
    """Return a network and the server's own examples, in the network's form."""
    task = task_of(settings)
    kept = task.server_shard()
    held = task.prepared(kept, facts) if facts else kept
    return Bench(task.make_model(task.signature()), held.x, held.y, task.loss(facts))


def _parameters(settings: Settings, facts: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the further arguments of the run's strategy."""
    bench = bench_of(settings, facts) if method_of(settings).needs_bench else None
    keep = settings.projection != "none"
    return {**arguments_of(settings), "seed": settings.seed, "bench": bench, "keep_models": keep}
