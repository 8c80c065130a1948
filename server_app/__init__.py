"""The Flower ServerApp: settings → strategy → rounds → results on disk."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from logging import ERROR, INFO, LogRecord
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords
from flwr.supercore.logger import FLOWER_LOGGER as logger
from flwr.supercore.logger import log

from fedbary import Posterior
from fedbary.config import Settings, resolve_run_config
from fedbary.errors import RunError, SettingError
from fedbary.federation import evaluation_data, load_dataset, make_model
from fedbary.metrics import evaluate as score
from fedbary.metrics import fairness
from fedbary.prediction import predict
from fedbary.runs import RunFolder, require_new, run_folder
from fedbary.seeds import derive_seed
from server_app.roster import gather, participants
from strategies import PosteriorStrategy, strategy_for

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the experiment that simulation.yaml and the run config describe."""
    try:
        settings = resolve_run_config(context.run_config)
        run(grid, settings, run_folder(settings, Path.cwd()))
    except (SettingError, RunError) as error:
        log(ERROR, "fedbary: %s", error)
        raise


def run(grid: Grid, settings: Settings, folder: Path) -> None:
    """Train a federation and write its results to `folder`, which must not exist yet."""
    require_new(folder)
    load_dataset(settings)
    members = gather(grid, settings.round_timeout)
    results = RunFolder(folder, settings, len(members))
    results.draw_partition(np.array([member.label_counts for member in members]))
    recorder = Recorder(settings, results)

    def evaluators(server_round: int) -> list[int]:
        held_out = settings.holdout > 0 and settings.measures_clients(server_round)
        return [member.node_id for member in members] if held_out else []

    strategy = strategy_for(settings.rule)(
        min_replies=settings.min_replies,
        train_metrics_aggr_fn=recorder.on_train,
        evaluate_metrics_aggr_fn=recorder.on_evaluate,
        choose_nodes=lambda server_round: participants(members, settings, server_round),
        choose_evaluators=evaluators,
    )
    recorder.strategy = strategy
    with only_our_lines():
        strategy.start(
            grid,
            ArrayRecord(make_model(settings).state_dict()),
            settings.rounds,
            timeout=settings.round_timeout,
            evaluate_fn=recorder.on_round,
        )
    if all(line["skipped"] for line in results.rounds[1:]):
        raise RunError(f"every round was skipped; metrics.jsonl in {folder} says why")
    results.finish(recorder.posterior, recorder.probs, recorder.labels, settings.ece_bins)
    log(INFO, "Results: %s", folder)


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


class Recorder:
    """Collects what each round yields and writes it as one line to the log and to the results.

    Flower calls `on_train` and `on_evaluate` with the admitted replies and `on_round` with the new
    global arrays, in this order.
    """

    def __init__(self, settings: Settings, results: RunFolder) -> None:
        self.settings = settings
        self.results = results
        self.strategy: PosteriorStrategy | None = None
        self.model = make_model(settings)
        self.images, self.labels = evaluation_data(settings)
        self.probs = torch.empty(0)
        self.round: dict[str, Any] = {}
        self.started = self.last = time.perf_counter()

    @property
    def posterior(self) -> Posterior:
        """Return the global posterior."""
        return Posterior.from_state_dict(self.model.state_dict())

    def on_train(self, replies: list[RecordDict], weight_key: str) -> MetricRecord:
        """Take the training metrics: their weighted means, and each client's own."""
        clients = _metrics(replies)
        self.round["clients"] = clients
        weights = [client[weight_key] for client in clients]
        if "local-accuracy" in clients[0]:
            accuracies = [client["local-accuracy"] for client in clients]
            self.round["local_models"] = fairness(accuracies, weights)
        return aggregate_metricrecords(replies, weight_key)

    def on_evaluate(self, replies: list[RecordDict], weight_key: str) -> MetricRecord:
        """Take the global model's scores on each client's held-out examples."""
        clients = _metrics(replies)
        accuracies = [client["accuracy"] for client in clients]
        weights = [client[weight_key] for client in clients]
        self.round["held_out"] = {**fairness(accuracies, weights), "clients": clients}
        return aggregate_metricrecords(replies, weight_key)

    def on_round(self, server_round: int, arrays: ArrayRecord) -> MetricRecord:
        """Score the global model and record the round."""
        self.model.load_state_dict(arrays.to_torch_state_dict())
        device = self.images.device
        seed = derive_seed(self.settings.seed, "predict-global", server_round)
        generator = torch.Generator(device).manual_seed(seed)
        self.probs = predict(self.model, self.images, self.settings.samples, generator)
        scores = dict.fromkeys(("accuracy", "nll", "ece", "brier"), math.nan)
        if self.probs.isfinite().all():
            scores = score(self.probs, self.labels, self.settings.ece_bins)
        now = time.perf_counter()
        seconds, self.last = now - self.last, now
        left = (now - self.started) / max(server_round, 1) * (self.settings.rounds - server_round)
        if server_round == 0:
            self.started = now
        line = {
            "round": server_round,
            **scores,
            "seconds": seconds,
            "log_var": {name: float(v.mean()) for name, v in self.posterior.log_var.items()},
            "skipped": server_round > 0 and "clients" not in self.round,
            **self._replies(server_round),
            **self.round,
        }
        self.round = {}
        self.results.add_round(line)
        log(
            INFO,
            "round %d/%d  accuracy %.2f %%  NLL %.4f  ECE %.2f %%  %.1f s  %s left%s",
            server_round,
            self.settings.rounds,
            100 * scores["accuracy"],
            scores["nll"],
            100 * scores["ece"],
            seconds,
            f"{left:.0f} s" if server_round else "?",
            "  skipped" if line["skipped"] else "",
        )
        return MetricRecord({**scores})

    def _replies(self, server_round: int) -> dict[str, Any]:
        if self.strategy is None or server_round == 0:
            return {}
        refusals = self.strategy.refusals
        return {
            "admitted": self.strategy.num_admitted,
            "refused": [refusal.reason for refusal in refusals if refusal.round == server_round],
        }


def _metrics(replies: list[RecordDict]) -> list[dict[str, Any]]:
    """Return the metrics of each reply, in the order of the partitions."""
    found = [dict(next(iter(reply.metric_records.values()))) for reply in replies]
    return sorted(found, key=lambda metrics: metrics["partition-id"])
