"""What every round yields, of any task: collected, logged and written to the run folder."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from logging import INFO
from typing import Any

import torch
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from flwr.supercore.logger import log
from torch import nn

from fedbary import Posterior
from fedbary.config import Settings
from fedbary.runs import RunFolder
from server_app.roster import Roster
from strategies import CONVENTIONS, GatedStrategy, posterior_from_arrays


class Recorder(ABC):
    """Collects what each round yields and writes it as one line to the log and to the results.

    Flower calls `on_train` and `on_evaluate` with the admitted replies and `on_round` with the new
    global arrays, in this order. A subclass scores the global model of its task.

    Parameters
    ----------
    settings, results, roster
        The run's.
    model
        The network that the global arrays are of; at first it holds what the run starts from.
    config
        What goes with every message to the clients.

    Attributes
    ----------
    known_metrics : mapping of str to (float, float)
        What is recorded of a client's metrics, each with its least and its largest value.
    """

    known_metrics: Mapping[str, tuple[float, float]] = {
        "num-examples": (0, math.inf),
        "train-seconds": (0, math.inf),
        "train-nll": (-math.inf, math.inf),
        "kl": (-math.inf, math.inf),
    }

    def __init__(
        self,
        settings: Settings,
        results: RunFolder,
        roster: Roster,
        model: nn.Module,
        config: Mapping[str, Any],
    ) -> None:
        self.settings = settings
        self.results = results
        self.roster = roster
        self.model = model
        self.config = config
        self.strategy: GatedStrategy | None = None
        self.round: dict[str, Any] = {}
        self.started = self.last = time.perf_counter()

    @property
    def posterior(self) -> Posterior:
        """Return the global posterior."""
        return Posterior.from_state_dict(self.model.state_dict())

    def on_train(self, replies: list[RecordDict], weight_key: str) -> MetricRecord:
        """Take the training metrics: their weighted means, and each client's own."""
        self.round["clients"] = self._metrics(replies)
        self.round["log_var_spread"] = _log_var_spread(replies)
        return _means(self.round["clients"], weight_key)

    def on_evaluate(self, replies: list[RecordDict], weight_key: str) -> MetricRecord:
        """Take the metrics of the clients' evaluation: their weighted means."""
        return _means(self._metrics(replies), weight_key)

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
        self.results.add_checkpoint(state, strategy.state_dict())
        log(
            INFO,
            "round %d/%d  %s  %.1f s  %s left%s",
            server_round,
            self.settings.rounds,
            self._said(scores),
            seconds,
            f"{left:.0f} s" if server_round else "?",
            "  skipped" if line["skipped"] else "",
        )
        return MetricRecord({**scores})

    def finish(self) -> None:
        """Write the final posterior and the learning curves."""
        self.results.finish(self.posterior)

    @abstractmethod
    def _scores(self, server_round: int) -> dict[str, float]:
        """Score the global model; other things worth a line go into `round`."""

    @abstractmethod
    def _said(self, scores: Mapping[str, float]) -> str:
        """Return what the log says of a round's scores."""

    def _replies(self, server_round: int) -> dict[str, Any]:
        """Return how many replies were admitted, why others were not, and who sent none."""
        if self.strategy is None or server_round == 0:
            return {}
        return {
            "admitted": self.strategy.num_admitted,
            "refused": [
                refusal.reason
                for refusal in self.strategy.refusals
                if refusal.round == server_round
            ],
            "unanswered": [
                self.roster.name(node) or self.roster.called(node)
                for node in sorted(self.strategy.unanswered)
            ],
        }

    def _metrics(self, replies: list[RecordDict]) -> list[dict[str, Any]]:
        """Return each reply's known metrics with its site's name, in the order of the members."""
        assert self.strategy is not None
        found = {
            node: next(iter(reply.metric_records.values()))
            for node, reply in zip(self.strategy.admitted_nodes, replies, strict=True)
        }
        return [
            {
                "site": member.name,
                **{k: v for k, v in found[member.node_id].items() if k in self.known_metrics},
            }
            for member in self.roster.members
            if member.node_id in found
        ]


def _means(clients: list[dict[str, Any]], weight_key: str) -> MetricRecord:
    """Return the weighted mean of each metric over the clients that tell it."""
    means = MetricRecord()
    for key in sorted({key for client in clients for key in client} - {"site", weight_key}):
        told = [(float(c[weight_key]), float(c[key])) for c in clients if key in c]
        total = sum(weight for weight, _ in told)
        means[key] = sum(weight / total * value for weight, value in told)
    return means


def _log_var_spread(replies: list[RecordDict]) -> dict[str, float]:
    """Return how far apart the clients' log-variances lie, per tensor, in nats.

    It is their standard deviation over the clients, averaged over the weights; nothing without
    Gaussians or with one client.
    """
    if len(replies) < 2:
        return {}
    posteriors = [
        posterior_from_arrays(next(iter(reply.array_records.values())), CONVENTIONS["fedbary"])
        for reply in replies
    ]
    return {
        name: float(torch.stack([p.log_var[name] for p in posteriors]).std(0).mean())
        for name in posteriors[0].log_var
    }
