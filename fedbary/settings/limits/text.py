"""Settings of a classification of texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fedbary.parts.parameters import told
from fedbary.settings.limits import classification
from fedbary.settings.task_words import OfTexts

if TYPE_CHECKING:
    from fedbary.settings.config import Settings

DATASETS = ("none",)

FILES = ("",)

Parameters = OfTexts

TAKES = classification.TAKES

BEST_BY = classification.BEST_BY


def limits(settings: Settings) -> Iterator[tuple[str, bool, str]]:
    """Yield the conditions."""
    own = told(OfTexts, settings)
    of_library = settings.backbone.startswith("hf:")
    yield "backbone", of_library, "hf:OWNER/NAME or hf:PATH, a model of transformers, for task=text"
    images = ("cnn", "resnet20", "unet")
    yield "model", settings.model not in images, "linear, mlp or a network of yours for task=text"
    yield from classification.of_adapters(settings)
    yield "text", own.text != own.target, "another column than target"
    yield "predictive", settings.predictive != "closed", "another value: closed is for regression"
    standard = own.features == "all" or own.normalise == "channels"
    yield "features", standard, "all for normalise=none: components are of standardised features"
    yield (
        "test_dataset",
        settings.test_dataset == "none",
        "none, or a set of task=tables",
    )
