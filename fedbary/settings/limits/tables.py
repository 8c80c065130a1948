"""Settings of a classification of tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fedbary.parts.registry import modules
from fedbary.settings.task_words import OfLabelledRows

if TYPE_CHECKING:
    from fedbary.settings.config import Settings

DATASETS = modules("data/tables", "read_labelled")

FILES = ("",)

Parameters = OfLabelledRows

TAKES = ("test_dataset",)

BEST_BY = {"nll": min, "accuracy": max, "ece": min, "brier": min, "auroc": max, "sensitivity": max}


def limits(settings: Settings) -> Iterator[tuple[str, bool, str]]:
    """Yield the conditions."""
    images = ("cnn", "resnet20", "unet")
    yield "model", settings.model not in images, "mlp, linear or a network of yours for tables"
    yield "dataset", settings.dataset != "none", "the server's own table for task=tables"
    yield "backbone", settings.backbone == "none", "none for task=tables"
    yield "predictive", settings.predictive != "closed", "another value: closed is for regression"
