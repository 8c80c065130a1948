"""Settings of images with any number of labels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fedbary.parts.registry import modules
from fedbary.settings.limits import classification
from fedbary.settings.task_words import OfImages

if TYPE_CHECKING:
    from fedbary.settings.config import Settings

Parameters = OfImages

DATASETS = ("none", *modules("data/images", "read_sets"))

FILES = (".npz",)

TAKES = classification.TAKES

BEST_BY = {**classification.BEST_BY, "f1": max, "auroc": max}


def limits(settings: Settings) -> Iterator[tuple[str, bool, str]]:
    """Yield the conditions."""
    yield from classification.limits(settings)
    bound = getattr(settings, "covariance", "none") == "shared"
    yield "covariance", not bound, "another value: shared is a bound for one softmax"
