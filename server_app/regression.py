"""Regression at the server: standardisation, noise, and the scores of Gaussian predictions."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from logging import WARNING
from typing import Any, TypeVar

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log
from torch import Generator, Tensor

from fedbary import Posterior
from fedbary.config import Settings
from fedbary.errors import RunError
from fedbary.regression.federation import Columns, evaluation_data, make_model, seed_of, task_of
from fedbary.regression.forecast import Forecast, drawn, forecast, linear_forecast
from fedbary.regression.noise import NoiseSums
from fedbary.regression.scores import SCORES, score
from fedbary.regression.standardise import Standardiser
from fedbary.runs import RunFolder
from fedbary.standardise import Sums
from fedbary.texts import shown
from server_app.recorder import Recorder
from server_app.roster import Roster
from strategies import FedAG

__all__ = ["Columns", "RegressionRecorder", "standardiser_of", "task_of"]

STANDARDISER = "standardiser"

LARGEST_SUM = 1e280
"""The largest sum of squares that is believed, so that no sum over clients overflows."""

_Sums = TypeVar("_Sums", Sums, NoiseSums)


def standardiser_of(
    grid: Grid, settings: Settings, results: RunFolder, roster: Roster
) -> Standardiser:
    """Return the standardisation of a run: the one it has, or of the sums of all members.

    The members are asked twice, see `fedbary.standardise`; those that answer neither
    question count in neither mean nor variance.

    Raises
    ------
    RunError
        If none answers.
    """
    if results.rounds:
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
        read = functools.partial(_sums, shift=shift)
        answers = _answers(grid, messages, settings, roster, read)
        if not answers:
            raise RunError("no node answered with the sums of its columns")
        shift = functools.reduce(operator.add, answers.values()).mean
        nodes = list(answers)
    standardiser = Standardiser.from_sums(functools.reduce(operator.add, answers.values()))
    results.write_tensors(STANDARDISER, {"mean": standardiser.mean, "std": standardiser.std})
    return standardiser


class RegressionRecorder(Recorder):
    """Scores the global model's Gaussian predictions in the target's own units."""

    known_metrics = {**Recorder.known_metrics, "train-mse": (0.0, math.inf)}

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
        if not (self.prediction.mean.isfinite().all() and self.prediction.var.isfinite().all()):
            self.prediction = None
            return dict.fromkeys(SCORES, math.nan)
        if self.noise_var > 0:
            none = torch.zeros_like(self.prediction.aleatoric)
            bare = score(replace(self.prediction, aleatoric=none), self.targets)
            self.round["without_noise"] = bare
        return score(self.prediction, self.targets)

    def _said(self, scores: Mapping[str, float]) -> str:
        if math.isnan(scores["rmse"]):
            return "not scored, predictions are not finite"
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
        answers = _answers(self.grid, messages, self.settings, self.roster, _noise_sums)
        if answers:
            self.noise_var = functools.reduce(operator.add, answers.values()).noise_var


def _answers(
    grid: Grid,
    messages: Iterable[Message],
    settings: Settings,
    roster: Roster,
    read: Callable[[Mapping[str, Any], int], _Sums],
) -> dict[int, _Sums]:
    """Return what can be read from the answers, by node, in an order that content alone sets.

    Nodes are not trusted: an answer that is an error, or not what was asked for, is left out.
    `read` is given an answer and the number of examples that the node trains on.
    """
    found = []
    for reply in grid.send_and_receive(messages, timeout=settings.round_timeout):
        node = reply.metadata.src_node_id
        if reply.has_error():
            continue
        try:
            metrics = dict(reply.content.metric_records["metrics"])
            sums = read(metrics, roster.trained_on(node))
        except Exception as error:  # noqa: BLE001 - a stranger's numbers raise many kinds
            said = f"{type(error).__name__}: {error}"
            log(WARNING, "%s sent no sums and is left out: %s", roster.called(node), shown(said))
        else:
            found.append((repr(sorted(metrics.items())), node, sums))
    return {node: sums for _, node, sums in sorted(found, key=lambda answer: answer[:2])}


def _sums(metrics: Mapping[str, Any], most: int, shift: Tensor) -> Sums:
    count = _count(metrics, most)
    total, squares = (torch.tensor(metrics[k], dtype=torch.float64) for k in ("total", "squares"))
    if total.shape != shift.shape or squares.shape != shift.shape:
        raise ValueError(f"of {tuple(total.shape)} and {tuple(squares.shape)} columns")
    _check_sums(count, total, squares)
    return Sums(count, shift, total, squares)


def _noise_sums(metrics: Mapping[str, Any], most: int) -> NoiseSums:
    count = _count(metrics, most)
    squares, spread = float(metrics["squares"]), float(metrics["spread"])
    if not (0 <= squares <= LARGEST_SUM and 0 <= spread <= LARGEST_SUM):
        raise ValueError(f"{squares:g} and {spread:g} are no sums of squares")
    return NoiseSums(count, squares, spread)


def _count(metrics: Mapping[str, Any], most: int) -> int:
    count = int(metrics["count"])
    if not 1 <= count <= most:
        raise ValueError(f"of {count} rows, where it trains on {most}")
    return count


def _check_sums(count: int, total: Tensor, squares: Tensor) -> None:
    """Raise a ValueError unless numbers exist whose sums, and sums of squares, these are."""
    possible = total.square() <= count * squares * (1 + 1e-6)
    if not (possible & (squares <= LARGEST_SUM)).all():
        raise ValueError(f"no {count} numbers have these sums and sums of squares")
