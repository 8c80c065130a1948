"""Images that bear any number of labels.

Labels are (N, labels) of 0 and 1. Networks return a logit for each label; its sigmoid is the
label's probability. Predictions are means over the drawn networks. Scores are macro F1 and macro
AUROC over the labels, and accuracy, NLL, ECE and Brier score over all single decisions. Examples
are dealt by their first label.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedbary.data.image_layout import ImageLayout
from fedbary.data.labels import SETS
from fedbary.figures.sheet import GREEN, SKY
from fedbary.predictive import Prediction
from fedbary.scores.multilabel import macro_auroc, macro_f1
from fedbary.settings.config import Settings
from fedbary.settings.task_words import OfImages
from fedbary.tasks import _class_scores
from fedbary.tasks.classification import Classification
from fedbary.tasks.shared.own_settings import Condition
from fedbary.tasks.shared.values import Facts, Loss

SCORES = {**_class_scores.SCORES, "f1": (0.0, 1.0), "auroc": (0.0, 1.0)}


def of_labels(settings: Settings) -> Iterator[Condition]:
    """Yield conditions on the settings of this task alone."""
    bound = getattr(settings, "covariance", "none") == "shared"
    yield "covariance", not bound, "another value: shared is a bound for one softmax"


class MultiLabel(Classification):
    """Classification of images whose labels do not exclude each other.

    A `Prediction` has the probabilities of no and yes for each label, (N, labels, 2).
    """

    Parameters = OfImages
    reads = "data/images read_sets .npz"
    best_by = (*Classification.best_by, "f1", "auroc")
    conditions = (*Classification.conditions, of_labels)
    labels = SETS
    limits: Mapping[str, tuple[float, float]] = SCORES
    known_metrics = _class_scores.known(SCORES)
    curves = (
        ("f1", 100, "Macro F1 (%)", SKY),
        ("auroc", 100, "Macro AUROC (%)", GREEN),
        _class_scores.NLL,
    )

    def loss(self, facts: Facts) -> Loss:
        """Return the sum over the labels of the binary cross-entropy, a mean over images."""
        return labels_cross_entropy

    def adjusting(self, facts: Facts) -> Callable[[Tensor], Tensor]:
        """Return the function that makes two logits of one: their softmax is its sigmoid."""
        return lambda answer: torch.stack([torch.zeros_like(answer), answer], -1)

    def judged(self, prediction: Prediction, y: Tensor) -> dict[str, float]:
        """Return macro F1 and AUROC beside the decisions' scores."""
        yes = prediction.probs[..., 1]
        y = y.to(yes.device)
        macro = {"f1": macro_f1(prediction.probs.argmax(-1), y), "auroc": macro_auroc(yes, y)}
        return {**super().judged(prediction, y), **macro}

    def said(self, scores: Mapping[str, float]) -> str:
        """Return macro F1 and AUROC and the decisions' scores."""
        line = super().said(scores)
        if math.isnan(scores["accuracy"]):
            return line
        return f"F1 {100 * scores['f1']:.2f} %  AUROC {100 * scores['auroc']:.2f} %  {line}"

    def answers(self, prediction: Prediction, signature: ImageLayout) -> dict[str, np.ndarray]:
        """Return the labels found, each one's probability, and summed uncertainties in nats."""
        yes = prediction.probs[..., 1].double().cpu().numpy()
        borne = [
            ", ".join(np.array(signature.classes)[row]) for row in prediction.probs.argmax(-1) == 1
        ]
        return {
            "labels": np.array(borne, dtype=object),
            **{f"p({name})": yes[:, k] for k, name in enumerate(signature.classes)},
            "total uncertainty": prediction.entropy.double().sum(1).cpu().numpy(),
            "epistemic uncertainty": prediction.epistemic.double().sum(1).cpu().numpy(),
        }


def labels_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return −Σ_l [y_l log σ(z_l) + (1 − y_l) log σ(−z_l)], a mean over the batch, in nats.

    Parameters
    ----------
    logits
        z, (batch, labels).
    labels
        y, (batch, labels), int64 of 0 and 1.
    """
    found = functional.binary_cross_entropy_with_logits(
        logits, labels.to(logits.dtype), reduction="sum"
    )
    return found / len(labels)
