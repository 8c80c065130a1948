"""Tables and a number for each of their rows.

All sites standardise features and target alike, from sums that they send. Predictions are Gaussian,
with or without a term for the target's noise (`noise`), and scored in the target's own units.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Generator, Tensor, nn

from fedbary.data import deal
from fedbary.data.deal import Shard
from fedbary.data.examples import Examples
from fedbary.data.tables import Layout, load
from fedbary.figures.run_pictures import reliability_picture
from fedbary.figures.sheet import BLUE, GREEN, RED
from fedbary.inference import prepare
from fedbary.models import mlp
from fedbary.parts.parameters import parameters_of
from fedbary.parts.registry import predictors
from fedbary.predictive import Forecast, Predictive
from fedbary.predictive.predictor import Draws, Forecasts, concatenated, kind_of
from fedbary.predictive.regression import NoiseSums, RegressionStandardiser, noise_sums
from fedbary.runs import schema
from fedbary.scores.regression import SCORES, score
from fedbary.settings.config import Settings
from fedbary.settings.task_words import OfNumbers
from fedbary.tasks import _failing, _sums
from fedbary.tasks._contrasts import Contrasts, columns_of
from fedbary.tasks._rows import Rows
from fedbary.tasks._values import (
    Condition,
    Dialogue,
    Facts,
    Graph,
    Loss,
    Outcome,
    Question,
    Scored,
    Unused,
)
from fedbary.variational.regressor import Regressor, gaussian_nll, moments

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOISE = "noise"

BATCH = 1000
"""Rows at a time."""

OF_CLASSES = (
    "dirichlet", "classes", "DirichletPartitioner", "PathologicalPartitioner", "ShardPartitioner",
)  # fmt: skip
"""Partitions that deal classes."""

NINETY_PERCENT = 1.6448536269514722
"""Half the width of the central 90 % interval of a Gaussian, in standard deviations."""


def of_numbers(settings: Settings) -> Iterator[Condition]:
    """Yield conditions on settings."""
    own = settings.of_task(OfNumbers)
    yield "model", settings.model in ("mlp", "linear"), "mlp or linear for task=regression"
    yield "dataset", settings.dataset != "none", "a data set for task=regression"
    deals = "iid, quantity or ContinuousPartitioner for regression"
    yield "partition", settings.partition not in OF_CLASSES, deals
    scored = settings.holdout == 0 or own.conformal is not None
    yield "holdout", scored, "0 for regression without conformal: the server has the test rows"
    yield "projection", settings.projection == "none", "none for regression"
    clamped = settings.inference == "clamped_sgd"
    yield "inference", not clamped, "another local method: only the CNN clamps log-variances"
    yield "device", settings.device != "cuda", "auto or cpu: regression is done on CPUs"
    name, noise = settings.strategy, own.noise
    of_rounds = noise != "cross" or settings.mode == "rounds"
    shown = "another value for mode=async: cross shows clients the networks of a round"
    yield "noise", of_rounds, shown
    if settings.trains_on_squares:
        yield "noise", noise != "learned", f"none, cross or a number for {name}"
    else:
        also = "protocol=regression-vi sets all that variational posteriors need"
        known = noise not in ("none", "cross")
        yield "noise", known, f"learned or a number for {name}; {also}"
    words = [word for word in predictors() if kind_of(word).numbers]
    yield "predictive", settings.predictive in words, f"{', '.join(words)} for regression"
    closed = settings.predictive != "closed" or settings.model == "linear"
    yield "predictive", closed, "auto, montecarlo or members for a network"


class Regression(Rows):
    """Regression on tables, scored by Gaussian predictions in the target's own units."""

    Parameters = OfNumbers
    reads = "data/tables read"
    conditions = (of_numbers,)
    numbers = True
    best_by = ("nll", "rmse", "crps")
    known_metrics = {"train-mse": (0.0, math.inf)}
    curves = (
        ("nll", 1, "Negative log-likelihood (nats)", RED),
        ("rmse", 1, "Root mean squared error", BLUE),
        ("coverage_90", 100, "Targets in the 90 % interval (%)", GREEN),
    )

    @functools.cached_property
    def own(self) -> OfNumbers:
        """The task's own settings."""
        return self.settings.of_task(OfNumbers)

    @staticmethod
    def unused(settings: Settings) -> Iterator[Unused]:
        """Yield what the steps on squared errors leave unused."""
        if settings.trains_on_squares:
            for name in ("momentum", "weight_decay", "max_grad_norm"):
                uses = "lr, lr_schedule, local_epochs, batch_size, noise"
                yield name, (f"method={settings.method}", uses)

    def load(self, name: str, layout: Layout | None = None) -> Examples:
        """Return rows with a number each."""
        by = self.settings
        return load(name, by.data_dir, self.own.target, by.download, layout, self.choice)

    def sample(self, count: int) -> tuple[Tensor, Tensor, int]:
        """Return zeros in place of standardised rows: the time they take is the same."""
        x, y = deal.training_data(self.held, self.deal)
        part = torch.zeros_like(x[:count]).float()
        return part, torch.zeros(len(part)), len(y)

    def make_model(self, signature: Layout) -> nn.Module:
        """Return the network for rows of those features; one for squared errors has no noise."""
        settings = self.settings
        noise = "none" if settings.trains_on_squares else self.own.noise
        hidden = 0
        if settings.model == "mlp":
            hidden = parameters_of(mlp.Parameters, dict(settings)).hidden_units
        model = Regressor(len(signature.features), hidden, settings.bayesian_layers, noise)  # type: ignore
        model.reset(settings.local.init_log_var, self.seed("model"))
        prepare(settings.inference, model)
        return model

    def loss(self, facts: Facts) -> Loss:
        """Return the Gaussian negative log-likelihood of standardised targets."""
        return gaussian_nll

    def prepared(self, shard: Shard, facts: Facts) -> Shard:
        """Return a shard with features and targets standardised."""
        by = RegressionStandardiser(**facts)
        return Shard(
            by.features(shard.x),
            by.target(shard.y),
            by.features(shard.x_held_out),
            by.target(shard.y_held_out),
            shard.independent,
        )

    def answer(
        self, question: str, shard: Shard, asked: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> dict[str, Any]:
        """Answer with the sums of the columns, the target's last, or with those of the noise."""
        if question == _sums.NAME:
            return _sums.answer(torch.cat([shard.x, shard.y[:, None]], 1), asked)
        if question == NOISE:
            held = noise_sums(tensors, shard.x, shard.y, int(asked["place"]))
            return {"count": held.count, "squares": held.squares, "spread": held.spread}
        return super().answer(question, shard, asked, tensors)

    def ask_first(self) -> Dialogue[dict[str, Tensor]]:
        """Ask for the sums of the columns; return the standardisation."""
        layout = self.signature()
        columns = (*layout.features, self.own.target)
        beside = functools.partial(self.beside, columns=columns)
        sums = yield from _sums.ask(len(columns), missing=self.fills, beside=beside)
        standardiser = RegressionStandardiser.from_sums(sums)
        found = {"mean": standardiser.mean, "std": standardiser.std}
        return {**found, **(yield from self.ask_fill(sums, layout))}

    def ask_after(
        self, members: Mapping[str, Tensor], last: Mapping[str, Any]
    ) -> Dialogue[dict[str, Any]]:
        """Ask each client for the others' networks' errors on its data; return the noise.

        If nobody answers, the noise of the round before stays.
        """
        noise = self.own.noise
        if self.settings.trains_on_squares and isinstance(noise, float):
            return {schema.NOISE_VAR: noise}
        if noise == "cross" and members:
            answers = yield Question(NOISE, read_noise, tensors=members)
            if answers:
                return {schema.NOISE_VAR: functools.reduce(operator.add, answers).noise_var}
        return {schema.NOISE_VAR: last.get(schema.NOISE_VAR, 0.0)}

    def scores(self, outcome: Outcome, facts: Facts) -> Scored:
        """Score the predictions, and those without the added noise if there is one."""
        x, targets = deal.evaluation_data(self.held, self.deal)
        seed = self.seed("predict-global", outcome.round)
        prediction = self.predict(outcome, x, facts, seed)
        if not (prediction.mean.isfinite().all() and prediction.var.isfinite().all()):
            return Scored(dict.fromkeys(SCORES, math.nan), {schema.FAILING: _failing.NOT_FINITE})
        line: dict[str, Any] = {}
        if outcome.predictive.noise_var > 0:
            none = torch.zeros_like(prediction.aleatoric)
            line[schema.WITHOUT_NOISE] = score(replace(prediction, aleatoric=none), targets)
        scores = score(prediction, targets)
        line |= _failing.numbers_failing(scores["rmse"], targets)
        if outcome.round and schema.FAILING not in line:
            line |= _failing.numbers_behind(self.rival(), prediction, targets)
        rows = RegressionStandardiser(**facts).features(x)
        causes = _failing.causes_in_columns(rows, self.signature().features)
        return Scored(scores, _failing.with_causes(line, causes), prediction)

    def rival(self) -> _failing.Rival | None:
        """Return the linear model of the rows; None if all targets are equal."""
        return _failing.rival(self.held, self.deal)

    def simpler(self) -> Iterator[tuple[str, Forecast]]:
        """Yield the linear model's forecast, and that of the training targets' Gaussian."""
        y = deal.training_data(self.held, self.deal)[1].double()
        count = len(deal.evaluation_data(self.held, self.deal)[1])
        if (found := self.rival()) is not None:
            yield "linear model", _constant(found.answers[:, 0].double(), found.noise_var)
        yield "constant forecast", _constant(y.mean().expand(count), float(y.var(correction=0)))

    def said(self, scores: Mapping[str, float]) -> str:
        """Return NLL, RMSE and coverage."""
        if math.isnan(scores["rmse"]):
            return "not scored, predictions are not finite"
        within = 100 * scores["coverage_90"]
        nll, rmse = scores["nll"], scores["rmse"]
        return f"NLL {nll:z.4f}  RMSE {rmse:.4g}  in the 90 % interval {within:.1f} %"

    def scored_by_clients(self, facts: Facts) -> tuple[Tensor, Tensor]:
        """Return the test rows, standardised, and their targets in their own units."""
        x, y = deal.evaluation_data(self.held, self.deal)
        return RegressionStandardiser(**facts).features(x), y

    def predict(self, outcome: Outcome, x: Tensor, facts: Facts, seed: int) -> Forecast:
        """Return the forecast of rows in their own units, in the target's."""
        rows = RegressionStandardiser(**facts).features(x)
        return self.predicted(outcome.model, rows, facts, seed, outcome.predictive)

    def predicted(
        self, model: nn.Module, x: Tensor, facts: Facts, seed: int, by: Predictive
    ) -> Forecast:
        """Return the forecast of standardised rows, in the target's own units."""
        _, predicted = self._forecasting(by, seed)
        found = concatenated([predicted(batch) for batch in x.split(BATCH)])
        return RegressionStandardiser(**facts).restore(found)

    def graph(self, outcome: Outcome, facts: Facts, seed: int) -> Graph:
        """Return mean, variance and its epistemic part, and each network's mean."""
        networks, predicted = self._forecasting(outcome.predictive, seed)
        standardiser = RegressionStandardiser(**facts)
        mean, std = float(facts["mean"][-1]), float(facts["std"][-1])

        def answered(x: Tensor) -> dict[str, Tensor]:
            rows = standardiser.features(x)
            found = predicted(rows).rescaled(mean, std)
            held = {"mean": found.mean, "var": found.var, "epistemic": found.epistemic}
            if networks:
                held["networks"] = mean + std * moments(networks, rows)[0]
            return held

        return answered

    def answers(self, prediction: Forecast, signature: Layout) -> dict[str, np.ndarray]:
        """Return means, standard deviations and central 90 % intervals, in the target's units."""
        mean, std = prediction.mean.double().numpy(), prediction.var.double().sqrt().numpy()
        half, epistemic = NINETY_PERCENT * std, prediction.epistemic.double().sqrt().numpy()
        return {
            "mean": mean,
            "std": std,
            "lower 90 %": mean - half,
            "upper 90 %": mean + half,
            "epistemic std": epistemic if epistemic.any() else np.full_like(epistemic, np.nan),
        }

    def contrasts(self, signature: Layout, facts: Facts) -> Contrasts:
        """Return the differences in the target's own units, by the columns' own units."""
        mean, std = facts["mean"], facts["std"]
        terms, units, columns = columns_of(signature, mean[:-1], std[:-1])
        unknown = torch.full((1, len(terms)), torch.nan, dtype=torch.float64)
        offset = torch.zeros_like(unknown)
        offset[0, -1] = mean[-1]
        target = (self.own.target,)
        outputs = std[-1:, None].double()
        return Contrasts(
            terms, units, target, columns, outputs, "identity", offset, unknown, unknown
        )

    def judged(self, prediction: Forecast, y: Tensor) -> dict[str, float]:
        """Return NLL, RMSE and the other scores."""
        return score(prediction, y)

    def judgement(
        self, prediction: Forecast, y: Tensor, title: str
    ) -> Iterator[tuple[str, Figure]]:
        """Yield a picture of the coverage of central intervals."""
        yield "coverage", reliability_picture(prediction, y, title=title)

    def _forecasting(self, by: Predictive, seed: int) -> tuple[Mapping[str, Tensor], Forecasts]:
        """Return the networks that predict, stacked, and the forecast of a standardised batch."""
        draws = Draws(self.settings.samples, Generator().manual_seed(seed))
        return self.predictor.resolved(by, draws.samples).forecasting(by, draws)


def _constant(mean: Tensor, var: float) -> Forecast:
    return Forecast(mean, torch.zeros_like(mean), torch.full_like(mean, var))


def read_noise(metrics: Mapping[str, Any], most: int) -> NoiseSums:
    """Return the sums that an answer holds, of at most so many rows; an error if it holds none."""
    count = _sums.count(metrics, most)
    squares, spread = float(metrics["squares"]), float(metrics["spread"])
    if not (0 <= squares <= _sums.LARGEST_SUM and 0 <= spread <= _sums.LARGEST_SUM):
        raise ValueError(f"{squares:g} and {spread:g} are no sums of squares")
    return NoiseSums(count, squares, spread)
