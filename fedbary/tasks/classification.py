"""Images and their classes.

Predictions are the mean softmax of networks drawn from the global posterior. Scores are accuracy,
NLL, ECE and Brier score; at the end also accuracy after rejection and the detection of foreign
images (`ood_dataset`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedbary.data import deal
from fedbary.data.corruption import require_pixels
from fedbary.data.examples import Examples
from fedbary.data.image_examples import read_images
from fedbary.data.image_layout import ImageLayout
from fedbary.data.images import Augment, Dataset, Normaliser, inputs, pixel_sums
from fedbary.data.shard import Shard
from fedbary.data.sites import Site, own_data, own_notes
from fedbary.device import torch_device
from fedbary.errors import SettingError
from fedbary.gaussian import Posterior
from fedbary.networks import reliability_picture
from fedbary.predictive import Prediction, Predictive
from fedbary.predictive._networks import device_of
from fedbary.predictive.choice import Predictor, predictor
from fedbary.predictive.combine import Gate, Pool
from fedbary.scores.metrics import evaluate
from fedbary.scores.temperature import nll_at_temperatures
from fedbary.settings.config import Settings
from fedbary.tasks import _beyond, _classes, _failing, _images, _sums
from fedbary.tasks._classes import SCORES
from fedbary.tasks._network import network
from fedbary.tasks._task import Task
from fedbary.tasks._values import Client, Dialogue, Facts, Graph, Loss, Outcome, Scored

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@lru_cache(maxsize=1024)
def _moved(shard: Shard, device: torch.device) -> Shard:
    return Shard(
        shard.x.to(device),
        shard.y.to(device),
        shard.x_held_out.to(device),
        shard.y_held_out.to(device),
    )


@lru_cache(maxsize=4)
def _scored(
    held: Dataset, dealt: deal.Deal, device: torch.device, by: Normaliser | None = None
) -> tuple[Tensor, Tensor]:
    x, y = deal.evaluation_data(held, dealt)
    return (by(x) if by else x).to(device), y.to(device)


@lru_cache(maxsize=4)
def _own_shard(path: str, layout: ImageLayout, resize: str, dealt: deal.Deal, key: int) -> Shard:
    return deal.site_shard(*own_data(path, layout, resize), dealt, key)


class Classification(Task):
    """Classification of images, scored by the mean softmax of drawn networks."""

    known_metrics = _classes.known(SCORES)
    curves = (_classes.ACCURACY, _classes.NLL, _classes.ECE)

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        if settings.normalise != "none":
            self.facts = "normaliser"

    def check(self, own_data: bool) -> None:
        """Raise a SettingError if the device, the data sets, the model or the split fail."""
        settings = self.settings
        torch_device(settings)
        self.make_model(self.signature())
        if settings.ood_dataset != "none":
            _images.load_foreign(settings)
        if settings.corruptions:
            require_pixels(inputs(deal.evaluation_data(self.held, self.deal)[0]))
        if not own_data:
            deal.client_rows(self.held, self.deal, settings.clients)

    @property
    def held(self) -> Dataset:
        """The images that the settings name."""
        return _images.load_dataset(self.settings)

    def signature(self) -> ImageLayout:
        """Return the shape and the classes."""
        return _images.layout_of(self.settings)

    def signature_from(self, config: Mapping[str, Any]) -> ImageLayout:
        """Return the shape and the classes that a ConfigRecord holds."""
        return ImageLayout.from_config(config)

    def shard(self, site: Site, signature: ImageLayout) -> Shard:
        """Return a site's images and labels, on the device."""
        if site.partition is None:
            shard = _own_shard(site.data_path, signature, self.settings.resize, self.deal, site.key)
        else:
            _images.require_fit(self.held, signature)
            shard = deal.client_shard(self.held, self.deal, site.partitions, site.partition)
        return _moved(shard, torch_device(self.settings))

    def notes(self) -> tuple[str, ...]:
        """Return what the data set's folder held, and what is odd about it."""
        return () if self.settings.dataset == "none" else self.held.notes

    def site_notes(self, site: Site, signature: ImageLayout) -> tuple[str, ...]:
        """Return what a site's own folder holds."""
        return own_notes(site.data_path, signature) if site.partition is None else ()

    def server_shard(self) -> Shard:
        """Return the images and labels that the server keeps to learn from, on the device."""
        return _moved(super().server_shard(), torch_device(self.settings))

    def sample(self, count: int) -> tuple[Tensor, Tensor, int]:
        """Return some training images and labels, on the device, and how many there are."""
        device = torch_device(self.settings)
        x, y = self.held.examples
        return x[:count].to(device), y[:count].to(device), len(y)

    def make_model(self, signature: ImageLayout) -> nn.Module:
        """Return the network for images of that shape."""
        outputs = len(signature.classes)
        return network(self.settings, signature.shape, outputs, self.seed("model"))

    def loss(self, facts: Facts) -> Loss:
        """Return the cross-entropy."""
        return functional.cross_entropy

    def augments(self, site: Site) -> Augment:
        """How images are changed at random; a site's own only if the settings say so."""
        if site.partition is None:
            return False if self.settings.augment == "auto" else self.settings.augment
        return _images.augments(self.settings)

    def prepared(self, shard: Shard, facts: Facts) -> Shard:
        """Return a shard with its images normalised."""
        by = Normaliser.from_facts(facts)
        return Shard(by(shard.x), shard.y, by(shard.x_held_out), shard.y_held_out)

    def answer(
        self, question: str, shard: Shard, asked: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> dict[str, Any]:
        """Answer with the sums of each channel over the pixels of the training images."""
        if question != _sums.NAME:
            return super().answer(question, shard, asked, tensors)
        return _sums.told(pixel_sums(shard.x, _sums.shift_of(asked)))

    def ask_first(self) -> Dialogue[dict[str, Tensor]]:
        """Ask for the sums of each channel; return the normalisation."""
        channels, height, width = self.signature().shape
        sums = yield from _sums.ask(channels, pixels=height * width)
        return Normaliser.from_sums(sums).facts()

    def label_counts(self, shard: Shard, signature: ImageLayout) -> list[int]:
        """Return how many images of each class a shard holds."""
        return _classes.label_counts(shard, len(signature.classes))

    def scored_by_clients(self, facts: Facts) -> tuple[Tensor, Tensor]:
        """Return the test images, as the model takes them, and labels."""
        by = Normaliser.from_facts(facts) if facts else None
        return _scored(self.held, self.deal, torch_device(self.settings), by)

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
        """Score a model at a client."""
        by = predicting or Predictive(model.state_dict())
        prediction = self._predict(model, x, seed, by.posterior, by.members, by.pool)
        found = evaluate(prediction.probs, y, self.settings.ece_bins, weights)
        if self.settings.calibrate == "temperature" and predicting is not None and weights is None:
            found |= nll_at_temperatures(prediction, y)
        return found

    def scores(self, outcome: Outcome, facts: Facts) -> Scored:
        """Score the global model on the test set, or, without one, on what the sites hold out.

        The latter are the means over the sites, weighted by how much each holds out, at a
        temperature of 1.
        """
        scores = dict.fromkeys(SCORES, math.nan)
        temperature = _classes.known_temperature(outcome)
        line: dict[str, Any] = {}
        if self.settings.dataset == "none":
            if told := [client for client in outcome.held_out if client.keys() >= SCORES.keys()]:
                scores = _classes.means(told)
            if temperature is not None:
                line["temperature"] = temperature
            if failing := _failing.no_better(scores, outcome.label_counts):
                line["failing"] = failing
            return Scored(scores, line)
        images, labels = self.scored_by_clients(facts)
        prediction = self._predict_global(outcome, images)
        if not prediction.probs.isfinite().all():
            return Scored(scores, {"failing": _failing.NOT_FINITE})
        if temperature is not None:
            line = _classes.at_temperature(prediction, labels, temperature)
            prediction = prediction.tempered(temperature)
        line |= _classes.uncertainty(prediction, labels)
        if self.settings.may_be_kept(outcome.round):
            line |= self._beyond(outcome, prediction, images, labels, facts)
        scores = evaluate(prediction.probs, labels, self.settings.ece_bins)
        line |= _failing.classes_failing(scores, prediction, labels, outcome.model, images)
        return Scored(scores, line, prediction)

    def said(self, scores: Mapping[str, float]) -> str:
        """Return accuracy, NLL and ECE."""
        if math.isnan(scores["accuracy"]):
            return _classes.unscored(self.settings.dataset != "none")
        accuracy, nll, ece = (scores[name] for name in ("accuracy", "nll", "ece"))
        return f"accuracy {100 * accuracy:.2f} %  NLL {nll:.4f}  ECE {100 * ece:.2f} %"

    def summary(self, trained: Sequence[Client], held_out: Sequence[Client]) -> dict[str, Any]:
        """Return the clients' fairness."""
        return _classes.summary(trained, held_out)

    def pictures_of_clients(self, line: Mapping[str, Any]) -> Iterator[tuple[str, Figure]]:
        """Yield who gains by a model of its own."""
        return _classes.pictures_of_clients(line)

    def pictures(self, prediction: Prediction, facts: Facts) -> Iterator[tuple[str, Figure]]:
        """Yield the reliability diagram."""
        labels = self.scored_by_clients(facts)[1]
        bins, title = self.settings.ece_bins, "Final global model"
        yield "reliability", reliability_picture(prediction, labels, bins, title)

    def predict(self, outcome: Outcome, x: Tensor, facts: Facts, seed: int) -> Prediction:
        """Predict images, in their own units, by the networks of the setting `predictive`."""
        images = self._taken(x, facts)
        return self._predict(
            outcome.model, images, seed, outcome.posterior, outcome.members, outcome.pool
        ).tempered(_classes.temperature_of(outcome))

    def _taken(self, x: Tensor, facts: Facts) -> Tensor:
        """Return images as the model takes them."""
        return Normaliser.from_facts(facts)(x) if facts else x

    def graph(self, outcome: Outcome, facts: Facts, seed: int) -> Graph:
        """Return probabilities and uncertainties of images, floats from 0 to 1 as `inputs` has."""
        members, pool = outcome.members, outcome.pool
        by = self._predictor(outcome.model, seed, outcome.posterior, members, pool)
        temperature = _classes.temperature_of(outcome)
        return _classes.graph(by, lambda x: self._taken(inputs(x), facts), temperature)

    def examples(self, path: Path, signature: ImageLayout) -> Examples:
        """Read an ``.npz`` file, an image, or a folder of images."""
        return read_images(path, signature, self.settings.resize)

    def compared(self, examples: Examples, said: Mapping[str, Any]) -> tuple[str, ...]:
        """Compare the pixels' range."""
        return _images.compared(examples.x, said)

    def evaluation_examples(self) -> Examples:
        """Return the test images, or those kept for validation."""
        if self.settings.dataset == "none":
            raise SettingError("dataset", "none", "labelled examples: this run's server had none")
        x, y = _scored(self.held, self.deal, torch_device(self.settings))
        return Examples(tuple(str(row) for row in range(1, len(y) + 1)), x, y)

    def answers(self, prediction: Prediction, signature: ImageLayout) -> dict[str, np.ndarray]:
        """Return classes, probabilities and uncertainties."""
        return _classes.answers(prediction, signature.classes)

    def judged(self, prediction: Prediction, y: Tensor) -> dict[str, float]:
        """Return accuracy, NLL, ECE and Brier score."""
        return evaluate(prediction.probs, y.to(prediction.probs.device), self.settings.ece_bins)

    def judgement(self, prediction: Prediction, y: Tensor) -> Iterator[tuple[str, Figure]]:
        """Yield the reliability diagram."""
        bins, title = self.settings.ece_bins, "Global model, these examples"
        yield "reliability", reliability_picture(prediction, y, bins, title)

    def _predict_global(self, outcome: Outcome, images: Tensor, *again: int) -> Prediction:
        seed = self.seed("predict-global", outcome.round, *again)
        return self._predict(
            outcome.model, images, seed, outcome.posterior, outcome.members, outcome.pool
        )

    def _predict(
        self,
        model: nn.Module,
        x: Tensor,
        seed: int,
        posterior: Posterior | None = None,
        members: Mapping[str, Tensor] | None = None,
        pool: Pool | Gate | None = None,
    ) -> Prediction:
        return self._predictor(model, seed, posterior, members, pool).over(model, x)

    def _predictor(
        self,
        model: nn.Module,
        seed: int,
        posterior: Posterior | None,
        members: Mapping[str, Tensor] | None,
        pool: Pool | Gate | None,
    ) -> Predictor:
        generator = torch.Generator(device_of(model)).manual_seed(seed)
        kind, samples = self.settings.predictive, self.settings.samples
        return predictor(kind, model, samples, generator, posterior, members, pool=pool)

    def _beyond(
        self, outcome: Outcome, here: Prediction, images: Tensor, labels: Tensor, facts: Facts
    ) -> dict[str, Any]:
        """Return what the uncertainty is worth at the end.

        That is accuracy after rejection, scores on corrupted images, detection of foreign data, and
        how far the ECE moves with the draw of the networks.
        """
        line = _classes.at_end(here, labels, self.seed("chance"))
        temperature = _classes.temperature_of(outcome)

        def predicted(x: Tensor, *again: int) -> Prediction:
            return self._predict_global(outcome, x, *again).tempered(temperature)

        if self.settings.bayesian_layers > 0:
            line["monte_carlo"] = _beyond.spread_over_draws(
                here, labels, lambda i: predicted(images, i)
            )
        if self.settings.corruptions:
            line["corrupted"] = _beyond.on_corrupted(
                deal.evaluation_data(self.held, self.deal)[0],
                labels,
                lambda x: predicted(self._taken(x.to(labels.device), facts)),
                lambda kind, strength: self.seed("corruption", kind, strength),
                self.settings.ece_bins,
            )
        foreign = _images.ood_images(self.settings)
        if foreign is not None:
            there = predicted(self._taken(foreign, facts))
            line["ood"] = _beyond.detection(here, there)
        return line
