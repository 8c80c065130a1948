"""Tables and a class for each of their rows.

All sites standardise their columns alike, from sums that they send; a text column is one feature
for each of its levels. Rare classes can weigh more in the loss (`class_weights=balanced`); the
predicted probabilities are those of the data's own frequencies all the same. Scores are accuracy,
NLL, ECE, Brier score, AUROC and the sensitivity at a chosen specificity (`specificity`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import one_hot

from fedbary.data import deal
from fedbary.data.image_layout import parse_classes
from fedbary.data.shard import Shard
from fedbary.data.standardise import Standardiser
from fedbary.data.tables import Labelled, Layout, load_labelled
from fedbary.device import torch_device
from fedbary.figures.roc import roc_curves
from fedbary.figures.sheet import GREEN, SKY
from fedbary.gaussian import Posterior
from fedbary.networks import reliability_picture
from fedbary.predictive import Prediction, Predictive
from fedbary.predictive._networks import device_of
from fedbary.predictive.choice import Predictor, predictor
from fedbary.predictive.combine import Gate, Pool
from fedbary.scores import tables as scores
from fedbary.scores.metrics import evaluate
from fedbary.scores.temperature import nll_at_temperatures
from fedbary.tabular import loss
from fedbary.tasks import _classes, _failing, _sums
from fedbary.tasks._network import network
from fedbary.tasks._rows import Rows
from fedbary.tasks._values import Client, Dialogue, Facts, Graph, Loss, Outcome, Scored

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCORES = {**_classes.SCORES, "auroc": (0.0, 1.0), "sensitivity": (0.0, 1.0)}


class Tables(Rows):
    """Classification of tables, standardised together, scored by the mean softmax of networks.

    Attributes
    ----------
    limits : mapping of str to (float, float)
        The scores, each with its least and its largest value.
    """

    counts_classes = True
    limits: Mapping[str, tuple[float, float]] = SCORES
    known_metrics = _classes.known(SCORES)
    curves = (
        _classes.ACCURACY,
        _classes.NLL,
        ("auroc", 100, "AUROC (%)", SKY),
        ("sensitivity", 100, "Sensitivity (%)", GREEN),
    )

    def load(self, name: str, layout: Layout | None = None) -> Labelled:
        """Return rows with classes: a layout's, else those of the settings, else the data's."""
        by = self.settings
        classes = parse_classes(by.classes) if layout is None and by.classes != "auto" else ()
        return load_labelled(
            name, by.data_dir, by.target, classes, layout, by.download, self.choice
        )

    def sample(self, count: int) -> tuple[Tensor, Tensor, int]:
        """Return zeros in place of standardised rows: the time they take is the same."""
        x, y = deal.training_data(self.held, self.deal)
        device = torch_device(self.settings)
        return torch.zeros_like(x[:count]).float().to(device), y[:count].to(device), len(y)

    def make_model(self, signature: Layout) -> nn.Module:
        """Return the network for rows of those features and classes."""
        shape, outputs = (len(signature.features),), len(signature.classes)
        return network(self.settings, shape, outputs, self.seed("model"))

    def loss(self, facts: Facts) -> Loss:
        """Return the cross-entropy, weighted by class as the setting `class_weights` says."""
        return loss.weighted_cross_entropy(self._weights(facts))

    def prepared(self, shard: Shard, facts: Facts) -> Shard:
        """Return a shard with its features standardised, on the device."""
        x = partial(self._standardised, facts)
        device = torch_device(self.settings)
        return Shard(
            x(shard.x), shard.y.to(device), x(shard.x_held_out), shard.y_held_out.to(device)
        )

    def label_counts(self, shard: Shard, signature: Layout) -> list[int]:
        """Return how many rows of each class a shard holds."""
        return _classes.label_counts(shard, len(signature.classes))

    def scored_by_clients(self, facts: Facts) -> tuple[Tensor, Tensor]:
        """Return the standardised test rows and labels."""
        x, y = deal.evaluation_data(self.held, self.deal)
        return self._standardised(facts, x), y.to(torch_device(self.settings))

    def client_scores(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        facts: Facts,
        seed: int,
        predicting: Predictive | None = None,
        weights: Tensor | None = None,
    ) -> dict[str, float]:
        """Score a model at a client; a site of one class has no AUROC and no sensitivity.

        Nor has any with weights.
        """
        by = predicting or Predictive(model.state_dict())
        prediction = self._predict(model, x, facts, seed, by.posterior, by.members, by.pool)
        if weights is not None:
            return evaluate(prediction.probs, y, self.settings.ece_bins, weights)
        found = self.judged(prediction, y)
        if self.settings.calibrate == "temperature" and predicting is not None:
            found |= nll_at_temperatures(prediction, y)
        return {name: value for name, value in found.items() if not math.isnan(value)}

    def answer(
        self, question: str, shard: Shard, asked: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> dict[str, Any]:
        """Answer with the sums of the features and, after these, of ones for each row's class."""
        if question != _sums.NAME:
            return super().answer(question, shard, asked, tensors)
        classes = len(asked["shift"]) - shard.x.shape[1]
        return _sums.answer(torch.cat([shard.x, one_hot(shard.y, classes)], 1), asked)

    def ask_first(self) -> Dialogue[dict[str, Tensor]]:
        """Ask for the sums of the columns; return the standardisation and each class's rows."""
        layout = self.signature()
        features = len(layout.features)
        classes = len(layout.classes)
        sums = yield from _sums.ask(features + classes, classes, missing=self.fills)
        scale = Standardiser.from_sums(sums)
        counts = (sums.mean[features:].clamp(0, 1) * sums.count).round()
        found = {"mean": scale.mean[:features], "std": scale.std[:features], "class_rows": counts}
        return {**found, **(yield from self.ask_fill(sums, layout))}

    def scores(self, outcome: Outcome, facts: Facts) -> Scored:
        """Score the global model on the test rows."""
        x, labels = self.scored_by_clients(facts)
        seed = self.seed("predict-global", outcome.round)
        model, posterior, members = outcome.model, outcome.posterior, outcome.members
        prediction = self._predict(model, x, facts, seed, posterior, members, outcome.pool)
        if not prediction.probs.isfinite().all():
            nothing = dict.fromkeys(self.limits, math.nan)
            return Scored(nothing, {"failing": _failing.NOT_FINITE})
        line = {}
        if self.settings.calibrate == "temperature":
            temperature = _classes.temperature_of(outcome)
            line = _classes.at_temperature(prediction, labels, temperature)
            prediction = prediction.tempered(temperature)
        line |= _classes.uncertainty(prediction, labels)
        if self.settings.may_be_kept(outcome.round):
            line |= _classes.at_end(prediction, labels, self.seed("chance"))
        found = self.judged(prediction, labels)
        line |= _failing.classes_failing(found, prediction, labels, model, x)
        return Scored(found, line, prediction)

    def said(self, scored: Mapping[str, float]) -> str:
        """Return accuracy, NLL, AUROC and the sensitivity at the chosen specificity."""
        if math.isnan(scored["accuracy"]):
            return _classes.unscored(True)
        return scores.said(scored, self.settings.specificity)

    def summary(self, trained: Sequence[Client], held_out: Sequence[Client]) -> dict[str, Any]:
        """Return the clients' fairness, and the means of their scores on what they hold out."""
        line = _classes.summary(trained, held_out)
        if "held_out" in line:
            told = [{**dict.fromkeys(SCORES, math.nan), **c} for c in line["held_out"]["clients"]]
            means = scores.pooled(told, [client["num-examples"] for client in told])
            line["held_out"] = {**means, **line["held_out"]}
        return line

    def pictures_of_clients(self, line: Mapping[str, Any]) -> Iterator[tuple[str, Figure]]:
        """Yield who gains by a model of its own."""
        return _classes.pictures_of_clients(line)

    def pictures(self, prediction: Prediction, facts: Facts) -> Iterator[tuple[str, Figure]]:
        """Yield the reliability diagram and the ROC curve of each positive class."""
        labels, title = self.scored_by_clients(facts)[1], "Final global model"
        bins = self.settings.ece_bins
        yield "reliability", reliability_picture(prediction, labels, bins, title)
        names = self.signature().classes
        curves = {names[k]: curve for k, curve in scores.rocs(prediction.probs, labels).items()}
        yield "roc", roc_curves(curves, self.settings.specificity, title)

    def _weights(self, facts: Facts) -> Tensor:
        rows = facts["class_rows"] if facts else torch.ones(len(self.signature().classes))
        return loss.class_weights(self.settings.class_weights, rows)

    def _standardised(self, facts: Facts, x: Tensor) -> Tensor:
        scale = Standardiser(facts["mean"], facts["std"], facts.get("fill"))
        return scale.features(x).to(torch_device(self.settings))

    def predict(self, outcome: Outcome, x: Tensor, facts: Facts, seed: int) -> Prediction:
        """Predict rows in their own units."""
        rows = self._standardised(facts, x)
        return self._predict(
            outcome.model, rows, facts, seed, outcome.posterior, outcome.members, outcome.pool
        ).tempered(_classes.temperature_of(outcome))

    def graph(self, outcome: Outcome, facts: Facts, seed: int) -> Graph:
        """Return probabilities and uncertainties of rows in their own units."""
        model, members, pool = outcome.model, outcome.members, outcome.pool
        by = self._predictor(model, facts, seed, outcome.posterior, members, pool)
        temperature = _classes.temperature_of(outcome)
        return _classes.graph(by, partial(self._standardised, facts), temperature)

    def answers(self, prediction: Prediction, signature: Layout) -> dict[str, np.ndarray]:
        """Return classes, probabilities and uncertainties."""
        return _classes.answers(prediction, signature.classes)

    def judged(self, prediction: Prediction, y: Tensor) -> dict[str, float]:
        """Return accuracy, NLL, ECE, Brier score, AUROC and sensitivity."""
        probs, settings = prediction.probs, self.settings
        return scores.score(probs, y.to(probs.device), settings.ece_bins, settings.specificity)

    def judgement(self, prediction: Prediction, y: Tensor) -> Iterator[tuple[str, Figure]]:
        """Yield the reliability diagram."""
        bins, title = self.settings.ece_bins, "Global model, these examples"
        yield "reliability", reliability_picture(prediction, y, bins, title)

    def _predict(
        self,
        model: nn.Module,
        x: Tensor,
        facts: Facts,
        seed: int,
        posterior: Posterior | None = None,
        members: Mapping[str, Tensor] | None = None,
        pool: Pool | Gate | None = None,
    ) -> Prediction:
        return self._predictor(model, facts, seed, posterior, members, pool).over(model, x)

    def _predictor(
        self,
        model: nn.Module,
        facts: Facts,
        seed: int,
        posterior: Posterior | None,
        members: Mapping[str, Tensor] | None,
        pool: Pool | Gate | None,
    ) -> Predictor:
        """Return the networks that predict together, under the classes' own frequencies."""
        generator = Generator(device_of(model)).manual_seed(seed)
        weights, settings = self._weights(facts), self.settings
        return predictor(
            settings.predictive, model, settings.samples, generator, posterior, members,
            adjusted=lambda logits: loss.natural(logits, weights), pool=pool,
        )  # fmt: skip
