"""Settings of a classification of images."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fedbary.parts.parameters import told
from fedbary.parts.registry import modules
from fedbary.settings.owners import methods
from fedbary.settings.task_words import OfAdapters, OfFeatures, OfImages, OfLabelledImages

if TYPE_CHECKING:
    from fedbary.settings.config import Settings

DATASETS = ("none", *modules("data/images", "read"))

FILES = (".npz", ".parquet")

Parameters: type[OfImages] = OfLabelledImages

TAKES = ("backbone",)

BEST_BY = {"nll": min, "accuracy": max, "ece": min, "brier": min}


def limits(settings: Settings) -> Iterator[tuple[str, bool, str]]:
    """Yield the conditions."""
    own = told(OfImages, settings)
    yield (
        "model",
        settings.model != "unet",
        f"another model for task={settings.task}: it predicts each pixel's class",
    )
    yield "predictive", settings.predictive != "closed", "another: closed is for regression"
    on_features = settings.backbone != "none" and own.adapters == "none"
    still = not on_features or own.augment in ("auto", False)
    yield "augment", still, "auto or false with a backbone, which sees an image once"
    flat = settings.backbone == "none" or settings.model not in ("cnn", "resnet20")
    yield "model", flat, "linear, mlp or a network of yours with a backbone, for its features"
    yield from of_adapters(settings)
    standard = own.features == "all" or own.normalise == "channels"
    yield "features", standard, "all for normalise=none: components are of standardised features"
    normal = own.normalise == "none" or getattr(settings, "pixels", "unit") == "unit"
    yield "normalise", normal, "none for pixels=signed"
    yield (
        "test_dataset",
        settings.test_dataset == "none",
        "none, or a set of task=tables",
    )


def of_adapters(settings: Settings) -> Iterator[tuple[str, bool, str]]:
    """Yield what does not go with adapters, where there are some."""
    if settings.backbone == "none" or told(OfAdapters, settings).adapters == "none":
        return
    own = told(OfFeatures, settings)
    last_alone = methods()[settings.method].fits_last_layer or settings.inference == "laplace"
    fits = f"method={settings.method}, inference={settings.inference}: they fit the last layer"
    yield "adapters", not last_alone, f"none for {fits}"
    yield "normalise", own.normalise == "none", "none with adapters: the backbone has its own"
    yield "features", own.features == "all", "all with adapters, which change the features"
