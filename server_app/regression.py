"""Regression at the server: standardisation, noise, and the scores of Gaussian predictions."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from torch import Generator, Tensor

from fedbary import Posterior
from fedbary.config import Settings
from fedbary.errors import RunError
from fedbary.regression.federation import Columns, evaluation_data, make_model, seed_of, task_of
from fedbary.regression.forecast import Forecast, drawn, forecast, linear_forecast
from fedbary.regression.noise import NoiseSums
from fedbary.regression.scores import score
from fedbary.regression.standardise import Standardiser, Sums
from fedbary.runs import RunFolder
from server_app.recorder import Recorder
from server_app.roster import Roster
from strategies import FedAG

__all__ = ["Columns", "RegressionRecorder", "standardiser_of", "task_of"]

STANDARDISER = "standardiser"


def standardiser_of(
    grid: Grid, settings: Settings, results: RunFolder, roster: Roster
) -> Standardiser:
    """Return the standardisation of a run: the one it has, or of the sums of all members.

    The members are asked twice, see `fedbary.regression.standardise`; those that answer neither
    question count in neither mean nor variance.

    Raises
    ------
    RunError
        If none answers, or the answers are no finite numbers.
    """
    if settings.resume != "none":
        return Standardiser(**results.read_tensors(STANDARDISER))
    task = task_of(settings)
    nodes = [member.node_id for member in roster.members]
    shift = torch.zeros(len(task.features) + 1, dtype=torch.float64)
    for _ in range(2):
        config = ConfigRecord({**task.config(), "shift": shift.tolist()})
        messages = [
            Message(RecordDict({"config": config}), node, f"{MessageType.QUERY}.sums")
            for node in nodes
        ]
        replies = _answers(grid, messages, settings)
        if not replies:
            raise RunError("no node answered with the sums of its columns")
        sums = functools.reduce(operator.add, (_sums(reply, shift) for reply in replies))
        shift = sums.mean
        nodes = [reply.metadata.src_node_id for reply in replies]
    standardiser = Standardiser.from_sums(sums)
    if not (standardiser.mean.isfinite().all() and standardiser.std.isfinite().all()):
        raise RunError("the nodes' sums of columns are not finite")
    results.write_tensors(STANDARDISER, {"mean": standardiser.mean, "std": standardiser.std})
    return standardiser


class RegressionRecorder(Recorder):
    """Scores the global model's Gaussian predictions in the target's own units."""

    def __init__(
        self,
        grid: Grid,
        settings: Settings,
        results: RunFolder,
        roster: Roster,
        standardiser: Standardiser,
    ) -> None:
        task = task_of(settings)
        scale = {"mean": standardiser.mean.tolist(), "std": standardiser.std.tolist()}
        model = make_model(settings, task)
        super().__init__(settings, results, roster, model, {**task.config(), **scale})
        self.grid = grid
        self.standardiser = standardiser
        x, self.targets = evaluation_data(settings)
        self.inputs = standardiser.features(x)
        self.noise_var = 0.0
        if settings.rule == "FedAG" and isinstance(settings.noise, float):
            self.noise_var = settings.noise
        elif results.rounds:
            self.noise_var = results.rounds[-1]["noise_var"]
        self.prediction: Forecast | None = None

    @property
    def networks(self) -> Mapping[str, Tensor]:
        """The clients' networks of the last round; none unless the rule keeps them."""
        return self.strategy.networks if isinstance(self.strategy, FedAG) else {}

    @property
    def posterior(self) -> Posterior:
        """Return the global posterior."""
        if self.networks and isinstance(self.strategy, FedAG):
            return self.strategy.posterior
        return super().posterior

    def finish(self) -> None:
        """Draw the calibration, and write the clients' networks and the final posterior."""
        if self.prediction is not None:
            self.results.draw_coverage(self.prediction, self.targets)
        if self.networks:
            self.results.write_tensors("networks", self.networks)
        super().finish()

    def _scores(self, server_round: int) -> dict[str, float]:
        """Score the predictions; where a noise was added to them, without it too."""
        if server_round >= len(self.results.rounds) and self.settings.noise == "cross":
            self._ask_noise()
        self.prediction = self.standardiser.restore(self._predict(server_round))
        self.round["noise_var"] = self.noise_var
        if self.noise_var > 0:
            none = torch.zeros_like(self.prediction.aleatoric)
            bare = score(replace(self.prediction, aleatoric=none), self.targets)
            self.round["without_noise"] = bare
        return score(self.prediction, self.targets)

    def _said(self, scores: Mapping[str, float]) -> str:
        within = 100 * scores["coverage_90"]
        nll, rmse = scores["nll"], scores["rmse"]
        return f"NLL {nll:.4f}  RMSE {rmse:.4g}  in the 90 % interval {within:.1f} %"

    def _predict(self, server_round: int) -> Forecast:
        """Return the forecast of the standardised test rows."""
        kind, posterior = self.settings.predictive, self.posterior
        if kind == "closed":
            return linear_forecast(posterior, self.inputs, self.noise_var)
        if kind == "bootstrap" and self.networks:
            return forecast(self.networks, self.inputs, self.noise_var)
        seed = seed_of(self.settings, "predict-global", server_round)
        generator = Generator().manual_seed(seed)
        networks = drawn(posterior, self.settings.samples, generator)
        return forecast(networks, self.inputs, self.noise_var)

    def _ask_noise(self) -> None:
        """Ask the clients of the last round for the noise; who does not answer is left out."""
        if not isinstance(self.strategy, FedAG) or not self.networks:
            return
        arrays = ArrayRecord({**self.networks})
        messages = []
        for own, node in enumerate(self.strategy.network_nodes):
            config = ConfigRecord({**self.config, "own": own})
            content = RecordDict({"networks": arrays, "config": config})
            messages.append(Message(content, node, f"{MessageType.QUERY}.noise"))
        sums = [_noise_sums(reply) for reply in _answers(self.grid, messages, self.settings)]
        if sums:
            self.noise_var = functools.reduce(operator.add, sums).noise_var


def _answers(grid: Grid, messages: Iterable[Message], settings: Settings) -> list[Message]:
    """Return the answers that are no errors, in an order that does not depend on when they came."""
    replies = grid.send_and_receive(messages, timeout=settings.round_timeout)
    answered = (reply for reply in replies if not reply.has_error())
    return sorted(answered, key=lambda reply: repr(_metrics(reply)))


def _metrics(reply: Message) -> MetricRecord:
    return reply.content.metric_records["metrics"]


def _sums(reply: Message, shift: Tensor) -> Sums:
    metrics: Any = _metrics(reply)
    total, squares = (torch.tensor(metrics[k], dtype=torch.float64) for k in ("total", "squares"))
    return Sums(int(metrics["count"]), shift, total, squares)


def _noise_sums(reply: Message) -> NoiseSums:
    metrics: Any = _metrics(reply)
    return NoiseSums(int(metrics["count"]), float(metrics["squares"]), float(metrics["spread"]))
