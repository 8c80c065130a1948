"""Settings of a segmentation of images."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fedbary.parts.parameters import told
from fedbary.parts.registry import is_factory, modules
from fedbary.settings.limits import classification
from fedbary.settings.limits.multilabel import FILES, TAKES
from fedbary.settings.task_words import OfImages

if TYPE_CHECKING:
    from fedbary.settings.config import Settings

__all__ = ["DATASETS", "FILES", "TAKES", "Parameters", "limits"]

Parameters = OfImages

DATASETS = ("none", *modules("data/images", "read_masks"))

BEST_BY = {**classification.BEST_BY, "iou": max}


def limits(settings: Settings) -> Iterator[tuple[str, bool, str]]:
    """Yield the conditions."""
    dense = settings.model == "unet" or is_factory(settings.model)
    yield "model", dense, "unet or a network of yours for task=segmentation"
    still = told(OfImages, settings).augment in ("auto", False)
    yield (
        "backbone",
        settings.backbone == "none",
        "none for task=segmentation: a feature is of the whole image",
    )
    yield "test_dataset", settings.test_dataset == "none", "none for task=segmentation"
    yield "augment", still, "auto or false for task=segmentation: masks would not move along"
    yield "predictive", settings.predictive != "closed", "another value: closed is for regression"
