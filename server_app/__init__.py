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
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords
from flwr.supercore.logger import FLOWER_LOGGER as logger
from flwr.supercore.logger import log
from torch import Tensor

from fedbary import Posterior
from fedbary.checkpoints import Checkpoint, load_checkpoint, save_checkpoint
from fedbary.config import Settings, resolve_run_config
from fedbary.errors import RunError, SettingError
from fedbary.federation import evaluation_data, make_model, ood_images, task_of
from fedbary.metrics import accuracy_after_rejection, auroc, fairness
from fedbary.metrics import evaluate as score
from fedbary.prediction import Prediction, predict
from fedbary.runs import RunFolder, require_new, require_resumable, run_folder
from fedbary.seeds import derive_seed
from fedbary.task import Task
from server_app.roster import Roster
from strategies import PosteriorStrategy, strategy_for

ECE_BINS = (15, 100)
"""The numbers of bins in use: most papers' and BA-BFL's; both are recorded beside `ece_bins`."""

SCORES = ("accuracy", "nll", "ece", "brier")

REJECTED = tuple(tenth / 10 for tenth in range(10))
"""Fractions of the test set that are rejected, most uncertain first."""

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
    """Train a federation and write its results to `folder`.

    The folder must not exist yet, or, where the settings say `resume`, hold a run that was cut
    off, which then goes on from a checkpoint.
    """
    task = task_of(settings)
    checkpoint = None
    if settings.resume == "none":
        require_new(folder)
    else:
        require_resumable(folder, settings)
        checkpoint = load_checkpoint(folder, settings.resume)
    roster = Roster(grid, settings, task)
    roster.gather()
    model = make_model(settings, task)
    if checkpoint is None:
        counts = {member.name: member.label_counts for member in roster.members}
        results = RunFolder(folder, settings, counts)
        completed = 0
    else:
        model.load_state_dict(dict(checkpoint.arrays))
        completed = checkpoint.round
        results = RunFolder.reopened(folder, settings, completed)
        log(INFO, "Goes on after round %d of %s", completed, folder)
    recorder = Recorder(settings, task, results, roster)

    def evaluators(server_round: int) -> list[int]:
        roster.note_silent(strategy.unanswered)
        held_out = settings.holdout > 0 and settings.measures_clients(server_round)
        return roster.present() if held_out else []

    strategy = strategy_for(settings.rule)(
        min_replies=settings.min_replies,
        max_skipped=settings.max_skipped,
        server_momentum=settings.server_momentum,
        trim_fraction=settings.trim_fraction,
        max_precision_ratio=settings.precision_bound,
        train_metrics_aggr_fn=recorder.on_train,
        evaluate_metrics_aggr_fn=recorder.on_evaluate,
        choose_nodes=roster.participants,
        choose_evaluators=evaluators,
    )
    if checkpoint is not None:
        strategy.load_state_dict(checkpoint.strategy, completed)
    recorder.strategy = strategy
    with only_our_lines():
        strategy.start(
            grid,
            ArrayRecord(model.state_dict()),
            settings.rounds - completed,
            timeout=settings.round_timeout,
            train_config=ConfigRecord({**task.config()}),
            evaluate_config=ConfigRecord({**task.config()}),
            evaluate_fn=recorder.on_round,
        )
    if all(line["skipped"] for line in results.rounds[1:]):
        raise RunError(f"every round was skipped; metrics.jsonl in {folder} says why")
    recorder.finish()
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

    def __init__(self, settings: Settings, task: Task, results: RunFolder, roster: Roster) -> None:
        self.settings = settings
        self.results = results
        self.roster = roster
        self.strategy: PosteriorStrategy | None = None
        self.model = make_model(settings, task)
        self.test = evaluation_data(settings) if settings.dataset != "none" else None
        self.prediction: Prediction | None = None
        self.round: dict[str, Any] = {}
        self.started = self.last = time.perf_counter()

    @property
    def posterior(self) -> Posterior:
        """Return the global posterior."""
        return Posterior.from_state_dict(self.model.state_dict())

    def on_train(self, replies: list[RecordDict], weight_key: str) -> MetricRecord:
        """Take the training metrics: their weighted means, and each client's own."""
        clients = self._metrics(replies)
        self.round["clients"] = clients
        self.round["log_var_spread"] = _log_var_spread(replies)
        weights = [client[weight_key] for client in clients]
        if "local-accuracy" in clients[0]:
            accuracies = [client["local-accuracy"] for client in clients]
            self.round["local_models"] = fairness(accuracies, weights)
        return aggregate_metricrecords(replies, weight_key)

    def on_evaluate(self, replies: list[RecordDict], weight_key: str) -> MetricRecord:
        """Take the global model's scores on each client's held-out examples."""
        clients = self._metrics(replies)
        accuracies = [client["accuracy"] for client in clients]
        weights = [client[weight_key] for client in clients]
        self.round["held_out"] = {**fairness(accuracies, weights), "clients": clients}
        return aggregate_metricrecords(replies, weight_key)

    def on_round(self, server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Score the global model, record the round and write the checkpoint.

        Of a run that goes on Flower shows first what it starts from: that is recorded already.
        """
        strategy = self.strategy
        assert strategy is not None
        server_round += strategy.completed_rounds
        state = arrays.to_torch_state_dict()
        self.model.load_state_dict(state)
        scores = self._scores(server_round)
        now = time.perf_counter()
        seconds, self.last = now - self.last, now
        if server_round < len(self.results.rounds):
            return None
        if server_round == 0:
            self.started = now
        rounds_here = max(server_round - strategy.completed_rounds, 1)
        left = (now - self.started) / rounds_here * (self.settings.rounds - server_round)
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
        checkpoint = Checkpoint(server_round, state, strategy.state_dict())
        save_checkpoint(self.results.path, checkpoint)
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

    def finish(self) -> None:
        """Draw the pictures and write the final posterior."""
        if self.prediction is not None and self.test is not None:
            probs, labels = self.prediction.probs, self.test[1]
            self.results.draw_reliability(probs, labels, self.settings.ece_bins)
        self.results.finish(self.posterior)

    def _scores(self, server_round: int) -> dict[str, float]:
        """Score the global model on the test set, or, without one, on what the sites hold out.

        The latter are the means over the sites, weighted by how much each holds out.
        """
        scores = dict.fromkeys(SCORES, math.nan)
        if self.test is None:
            clients = self.round.get("held_out", {}).get("clients", [])
            if clients:
                weights = [client["num-examples"] for client in clients]
                for name in SCORES:
                    values = [client[name] for client in clients]
                    scores[name] = float(np.average(values, weights=weights))
            return scores
        images, labels = self.test
        self.prediction = self._predict(images, server_round)
        if self.prediction.probs.isfinite().all():
            scores = score(self.prediction.probs, labels, self.settings.ece_bins)
            self.round |= self._beyond(self.prediction, labels, server_round)
        return scores

    def _predict(self, images: torch.Tensor, server_round: int) -> Prediction:
        seed = derive_seed(self.settings.seed, "predict-global", server_round)
        generator = torch.Generator(images.device).manual_seed(seed)
        return predict(self.model, images, self.settings.samples, generator)

    def _beyond(self, here: Prediction, labels: Tensor, server_round: int) -> dict[str, Any]:
        """Return the ECE in the usual bins and the split of uncertainty; at the end more.

        That is what the uncertainty is worth: accuracy after rejection, detection of foreign data.
        """
        line: dict[str, Any] = {
            f"ece_{bins}": score(here.probs, labels, bins)["ece"] for bins in ECE_BINS
        }
        line["uncertainty"] = {
            "entropy": float(here.entropy.mean()),
            "aleatoric": float(here.aleatoric.mean()),
            "epistemic": float(here.epistemic.mean()),
        }
        if server_round < self.settings.rounds:
            return line
        kept = accuracy_after_rejection(here.probs, labels, here.entropy, REJECTED)
        line["rejection"] = {
            f"{fraction:.1f}": value for fraction, value in zip(REJECTED, kept, strict=True)
        }
        foreign = ood_images(self.settings)
        if foreign is not None:
            there = self._predict(foreign, server_round)
            line["ood"] = {
                "auroc_entropy": auroc(here.entropy, there.entropy),
                "auroc_epistemic": auroc(here.epistemic, there.epistemic),
            }
        return line

    def _replies(self, server_round: int) -> dict[str, Any]:
        """Return how many replies were admitted, why others were not, and who sent none."""
        if self.strategy is None or server_round == 0:
            return {}
        return {
            "admitted": self.strategy.num_admitted,
            "refused": [
                ", ".join(filter(None, (self.roster.name(refusal.node_id), refusal.reason)))
                for refusal in self.strategy.refusals
                if refusal.round == server_round
            ],
            "unanswered": [self.roster.name(node) for node in sorted(self.strategy.unanswered)],
        }

    def _metrics(self, replies: list[RecordDict]) -> list[dict[str, Any]]:
        """Return the metrics of each reply with its site's name, in the order of the members."""
        assert self.strategy is not None
        found = {
            node: dict(next(iter(reply.metric_records.values())))
            for node, reply in zip(self.strategy.admitted_nodes, replies, strict=True)
        }
        return [
            {"site": member.name, **found[member.node_id]}
            for member in self.roster.members
            if member.node_id in found
        ]


def _log_var_spread(replies: list[RecordDict]) -> dict[str, float]:
    """Return how far apart the clients' log-variances lie, per tensor, in nats.

    It is their standard deviation over the clients, averaged over the weights; nothing without
    Gaussians or with one client.
    """
    if len(replies) < 2:
        return {}
    posteriors = [
        Posterior.from_state_dict(next(iter(reply.array_records.values())).to_torch_state_dict())
        for reply in replies
    ]
    return {
        name: float(torch.stack([p.log_var[name] for p in posteriors]).std(0).mean())
        for name in posteriors[0].log_var
    }
