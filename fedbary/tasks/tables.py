"""Tables and a class for each of their rows.

All sites standardise their columns alike, from sums that they send. A text column becomes one
feature for each of its levels. Rare classes can weigh more in the loss (`class_weights=balanced`).
Predicted probabilities still follow the data's own class frequencies. Scores are accuracy, NLL,
ECE, Brier score, AUROC and the sensitivity at a chosen specificity (`specificity`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import one_hot

from fedbary.data import deal
from fedbary.data.deal import Shard
from fedbary.data.examples import Examples, with_test
from fedbary.data.image_layout import parse_classes
from fedbary.data.standardise import Standardiser
from fedbary.data.tables import Layout, load_features, load_labelled
from fedbary.errors import SettingError
from fedbary.figures.roc_curves import MOST, roc_curves
from fedbary.figures.sheet import GREEN, SKY
from fedbary.parts.parameters import ShareOrZero
from fedbary.predictive import Prediction
from fedbary.scores import tables as scores
from fedbary.scores.metrics import Roc
from fedbary.settings.config import Settings
from fedbary.settings.device import torch_device
from fedbary.settings.task_words import OfClasses, OfRows
from fedbary.tasks import _beyond, _classes, _failing, _sums
from fedbary.tasks._classes import Classes, predicts_classes
from fedbary.tasks._contrasts import Contrasts, against, are_levels, columns_of, rows_of
from fedbary.tasks._network import network
from fedbary.tasks._rows import Rows
from fedbary.tasks._values import (
    Condition,
    Dialogue,
    Facts,
    Loss,
    Outcome,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLASS_WEIGHTS = ("none", "balanced")


def class_weights(scheme: str, counts: Sequence[int] | Tensor) -> Tensor:
    """Return the weight of each class, (K,) float32: 1, or N / (K N_c).

    A class that no client holds has weight 1; N and K are then those of the classes that are held.
    The weights' mean over the counted rows is 1: the data count as much as without weights.

    Parameters
    ----------
    scheme : str
        ``none`` or ``balanced``.
    counts : sequence of int
        N_c, the training rows of each class over all clients, (K,).

    Raises
    ------
    SettingError
        If there is no such scheme.
    ValueError
        If a count is negative or all are 0.
    """
    if scheme not in CLASS_WEIGHTS:
        raise SettingError("class_weights", scheme, ", ".join(CLASS_WEIGHTS))
    held = torch.as_tensor(counts, dtype=torch.float64)
    if not (held >= 0).all() or not held.sum() > 0:
        raise ValueError(f"counts of classes must be at least 0 and not all 0; got {counts}")
    if scheme == "none":
        return torch.ones(len(held))
    equal = held.sum() / (held > 0).sum()
    return torch.where(held > 0, equal / held, 1.0).float()


def weighted_cross_entropy(weights: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the loss (1/B) Σ_i w_{y_i} · −log softmax(logits_i)[y_i], in nats.

    The sum is divided by the number of rows B. PyTorch's ``weight=`` divides by the sum of the
    weights instead. The influence of a rare row would then depend on the other rows of its batch.
    Weights would cancel in batches, and at clients, with a single class.

    Parameters
    ----------
    weights : Tensor
        One per class, (K,), as in `class_weights`.

    Returns
    -------
    Callable
        Loss of logits (B, K) and labels (B,); the local methods take it as `nll`.
    """

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        total = functional.cross_entropy(logits, labels, weights.to(logits), reduction="sum")
        return total / len(labels)

    return loss


def natural(logits: Tensor, weights: Tensor) -> Tensor:
    """Return logits whose softmax p ∝ q / w is under the classes' own frequencies.

    Parameters
    ----------
    logits : Tensor
        Logits of a network trained with the weights, (…, K); their softmax is q.
    weights : Tensor
        w, (K,), above 0.
    """
    return logits - weights.to(logits.device).log()


SCORES = {**_classes.SCORES, "auroc": (0.0, 1.0), "sensitivity": (0.0, 1.0)}


@dataclass(frozen=True)
class OfLabelledRows(OfRows, OfClasses):
    """Settings of the classification of tables.

    Parameters
    ----------
    class_weights
        none; balanced: rare classes weigh more in the loss, counted over all clients. The predicted
        probabilities are still those of the data's own frequencies.
    specificity
        Specificity at which the sensitivity is reported.
    test_dataset
        Separate rows to test on, in any form of dataset. none: the rows that split says.
    """

    test_dataset: str = "none"
    class_weights: Literal["none", "balanced"] = "none"
    specificity: ShareOrZero = 0.95


def of_rows(settings: Settings) -> Iterator[Condition]:
    """Yield conditions on settings."""
    flat = settings.model not in ("cnn", "resnet20")
    yield "model", flat, "mlp, linear or a network of yours for tables"
    yield "dataset", settings.dataset != "none", "the server's own table for task=tables"


class Tables(Rows, Classes):
    """Classification of tables, standardised together, scored by the mean softmax of networks.

    Attributes
    ----------
    limits : mapping of str to (float, float)
        The scores, each with its least and its largest value.
    """

    Parameters = OfLabelledRows
    reads = "data/tables read_labelled"
    best_by = (*Classes.best_by, "auroc", "sensitivity")
    conditions = (predicts_classes, of_rows)
    counts_classes = True
    limits: Mapping[str, tuple[float, float]] = SCORES
    curves = (
        _classes.ACCURACY,
        _classes.NLL,
        ("auroc", 100, "AUROC (%)", SKY),
        ("sensitivity", 100, "Sensitivity (%)", GREEN),
    )

    @cached_property
    def own(self) -> OfLabelledRows:
        """The task's own settings."""
        return self.settings.of_task(OfLabelledRows)

    def load(self, name: str, layout: Layout | None = None) -> Examples:
        """Return rows with classes: a layout's, else those of the settings, else the data's."""
        by, own = self.settings, self.own
        classes = parse_classes(own.classes) if layout is None and own.classes != "auto" else ()
        place, how = (by.data_dir, own.target), (by.download, self.choice)
        held = load_labelled(name, *place, classes, layout, *how)
        if own.test_dataset == "none" or name != by.dataset:
            return held
        return with_test(held, load_labelled(own.test_dataset, *place, (), held.layout, *how))

    def check(self, own_data: bool) -> None:
        """Raise a SettingError if the data, the split, the model or `ood_dataset` fail."""
        super().check(own_data)
        self._foreign()

    def _foreign(self) -> Tensor | None:
        """Return the rows of `ood_dataset`, in their own units; None for none."""
        by, own = self.settings, self.own
        if own.ood_dataset == "none":
            return None
        layout = self.signature()
        return load_features(own.ood_dataset, by.data_dir, own.target, by.download, layout)

    def at_end(
        self, outcome: Outcome, prediction: Prediction, x: Tensor, y: Tensor, facts: Facts
    ) -> dict[str, Any]:
        """Return the worth of uncertainties, also for the detection of `ood_dataset`."""
        line = super().at_end(outcome, prediction, x, y, facts)
        if (foreign := self._foreign()) is not None:
            found = self.predict_global(outcome, self.taken(foreign, facts), facts)
            there = found.tempered(self.temperature(outcome) or 1.0)
            line["ood"] = _beyond.detection(prediction, there)
        return line

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
        """Return the cross-entropy, weighted by the setting `class_weights`."""
        return weighted_cross_entropy(self._weights(facts))

    def prepared(self, shard: Shard, facts: Facts) -> Shard:
        """Return a shard with its features standardised, on the device."""
        x = partial(self.taken, facts=facts)
        device = torch_device(self.settings)
        y, y_held_out = shard.y.to(device), shard.y_held_out.to(device)
        return Shard(x(shard.x), y, x(shard.x_held_out), y_held_out, shard.independent)

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
        beside = partial(self.beside, columns=layout.features)
        sums = yield from _sums.ask(features + classes, classes, 0, self.fills, beside)
        scale = Standardiser.from_sums(sums)
        counts = (sums.mean[features:].clamp(0, 1) * sums.count).round()
        found = {"mean": scale.mean[:features], "std": scale.std[:features], "class_rows": counts}
        return {**found, **(yield from self.ask_fill(sums, layout))}

    def said(self, scored: Mapping[str, float]) -> str:
        """Return accuracy, NLL, AUROC and the sensitivity at the chosen specificity."""
        if math.isnan(scored["accuracy"]):
            return super().said(scored)
        return scores.said(scored, self.own.specificity)

    def judgement(
        self, prediction: Prediction, y: Tensor, title: str
    ) -> Iterator[tuple[str, Figure]]:
        """Yield the reliability diagram and, of few classes, the ROC curve of each positive one."""
        yield from super().judgement(prediction, y, title)
        if len(curves := self._curves(prediction, y)) <= MOST:
            yield "roc", roc_curves(curves, self.own.specificity, title)

    def left_out(self, prediction: Prediction, y: Tensor) -> str:
        """Return the classes that the AUROC leaves out."""
        return scores.left_out(self._curves(prediction, y))

    def _curves(self, prediction: Prediction, labels: Tensor) -> dict[str, Roc]:
        """Return the ROC curve of each positive class, by its name."""
        names = self.signature().classes
        found = scores.rocs(prediction.probs, labels.to(prediction.probs.device))
        return {names[k]: curve for k, curve in found.items()}

    def _weights(self, facts: Facts) -> Tensor:
        rows = facts["class_rows"] if facts else torch.ones(len(self.signature().classes))
        return class_weights(self.own.class_weights, rows)

    def adjusting(self, facts: Facts) -> Callable[[Tensor], Tensor]:
        """Return the function that undoes the class weights in logits."""
        return partial(natural, weights=self._weights(facts))

    def temperature(self, outcome: Outcome) -> float | None:
        """Return the temperature; 1 if predictions have one and no site has told its own."""
        known = super().temperature(outcome)
        return 1.0 if known is None and self.own.calibrate == "temperature" else known

    def taken(self, x: Tensor, facts: Facts) -> Tensor:
        """Return rows standardised."""
        scale = Standardiser(facts["mean"], facts["std"], facts.get("fill"))
        return scale.features(x).to(torch_device(self.settings))

    def contrasts(self, signature: Layout, facts: Facts) -> Contrasts:
        """Return the log-odds of each class against the first, by the columns' own units."""
        rows = facts["class_rows"].double()
        terms, units, columns = columns_of(signature, facts["mean"], facts["std"])
        shape = len(rows) - 1, len(terms)
        seen = rows_of(terms, units, signature, facts["mean"], rows.sum())
        events = torch.where(are_levels(units), torch.nan, rows[1:, None])
        names = signature.classes
        return Contrasts(
            terms,
            units,
            tuple(f"{name} against {names[0]}" for name in names[1:]),
            columns,
            against(len(names)),
            "odds",
            torch.zeros(shape, dtype=torch.float64),
            seen.expand(shape),
            events,
        )

    def causes(
        self, outcome: Outcome, prediction: Prediction, x: Tensor, y: Tensor
    ) -> Iterator[str]:
        """Yield causes in the labels, and in the columns."""
        yield from super().causes(outcome, prediction, x, y)
        yield from _failing.causes_in_columns(x, self.signature().features)

    def judged(self, prediction: Prediction, y: Tensor) -> dict[str, float]:
        """Return accuracy, NLL, ECE, Brier score, AUROC and sensitivity."""
        probs = prediction.probs
        return scores.score(probs, y.to(probs.device), self.own.ece_bins, self.own.specificity)
