"""Images and the class of each of their pixels.

Labels are masks (N, H, W); class 0 is the background. Predictions are the mean softmax of drawn
networks at each pixel. Scores are the mean intersection over union, and accuracy, NLL, ECE and
Brier score over the single pixels. Examples are dealt by their largest object.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor
from torch.nn import functional

from fedbary.data.image_layout import ImageLayout
from fedbary.data.labels import MASKS
from fedbary.figures.masks import masks_picture
from fedbary.figures.sheet import SKY
from fedbary.parts.parameters import told
from fedbary.parts.registry import is_factory
from fedbary.predictive import Prediction
from fedbary.scores.segmentation import mean_iou
from fedbary.settings.config import Settings
from fedbary.settings.task_words import OfImages
from fedbary.tasks import _class_scores
from fedbary.tasks._classes import predicts_classes
from fedbary.tasks.classification import Classification
from fedbary.tasks.shared.own_settings import Condition
from fedbary.tasks.shared.values import Facts, Loss

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCORES = {**_class_scores.SCORES, "iou": (0.0, 1.0)}

PIXELS_AT_ONCE = 1 << 17

SHOWN = 6
"""Test images that are drawn with their masks."""


def of_masks(settings: Settings) -> Iterator[Condition]:
    """Yield conditions on settings."""
    dense = settings.model == "unet" or is_factory(settings.model)
    yield "model", dense, "unet or a network of yours for task=segmentation"
    own = told(OfImages, settings)
    whole = "none for task=segmentation: a feature is of the whole image"
    yield "backbone", own.backbone == "none", whole
    still = own.augment in ("auto", False)
    yield "augment", still, "auto or false for task=segmentation: masks would not move along"


class Segmentation(Classification):
    """Segmentation of images by networks that answer with a logit a class for each pixel."""

    Parameters = OfImages
    reads = "data/images read_masks .npz"
    best_by = (*Classification.best_by, "iou")
    conditions = (predicts_classes, of_masks)
    labels = MASKS
    limits: Mapping[str, tuple[float, float]] = SCORES
    known_metrics = _class_scores.known(SCORES)
    curves = (
        ("iou", 100, "Mean IoU (%)", SKY),
        _class_scores.NLL,
        _class_scores.ECE,
    )

    def network_answer(self, signature: ImageLayout) -> tuple[int, ...]:
        """Return (classes, H, W)."""
        return (len(signature.classes), *signature.shape[1:])

    def at_once(self, x: Tensor) -> int:
        """Return the number of images that have 2¹⁷ pixels together, 500 at most."""
        return min(super().at_once(x), max(1, PIXELS_AT_ONCE // x.shape[2:].numel()))

    def loss(self, facts: Facts) -> Loss:
        """Return the mean cross-entropy of the pixels.

        Neighbouring pixels are nearly copies of each other, so an image counts as one observation,
        not as H·W.
        """
        return pixel_cross_entropy

    def adjusting(self, facts: Facts) -> Callable[[Tensor], Tensor]:
        """Return the function that puts classes last, (networks, batch, H, W, classes)."""
        return lambda answer: answer.movedim(2, -1)

    def judged(self, prediction: Prediction, y: Tensor) -> dict[str, float]:
        """Return the mean IoU beside the pixels' scores."""
        probs = prediction.probs
        iou = mean_iou(probs.argmax(-1), y.to(probs.device), probs.shape[-1])
        return {**super().judged(prediction, y), "iou": iou}

    def said(self, scores: Mapping[str, float]) -> str:
        """Return the mean IoU and the pixels' scores."""
        line = super().said(scores)
        return line if math.isnan(scores["iou"]) else f"IoU {100 * scores['iou']:.2f} %  {line}"

    def answers(self, prediction: Prediction, signature: ImageLayout) -> dict[str, np.ndarray]:
        """Return each class's share of the pixels, and the pixels' mean uncertainties in nats."""
        shares = functional.one_hot(prediction.probs.argmax(-1), len(signature.classes))
        held = shares.double().mean((1, 2)).cpu().numpy()
        return {
            **{f"share({name})": held[:, k] for k, name in enumerate(signature.classes)},
            "total uncertainty": prediction.entropy.double().mean((1, 2)).cpu().numpy(),
            "epistemic uncertainty": prediction.epistemic.double().mean((1, 2)).cpu().numpy(),
        }

    def pictures(self, prediction: Prediction, facts: Facts) -> Iterator[tuple[str, Figure]]:
        """Yield the reliability diagram, and images with true and found masks and uncertainty."""
        yield from super().pictures(prediction, facts)
        held = self.evaluation_examples()
        assert held.y is not None
        found, unsure = prediction.probs[:SHOWN].argmax(-1), prediction.entropy[:SHOWN]
        yield "masks", masks_picture(held.x[:SHOWN], held.y[:SHOWN], found, unsure)


def pixel_cross_entropy(logits: Tensor, masks: Tensor) -> Tensor:
    """Return the mean over images and pixels of −log softmax(logits)[mask], in nats.

    Parameters
    ----------
    logits
        (batch, classes, H, W).
    masks
        (batch, H, W), int64.
    """
    return functional.cross_entropy(logits, masks)
