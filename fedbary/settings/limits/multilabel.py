"""Which settings images with any number of labels take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fedbary.parts.registry import modules
from fedbary.settings.limits import classification
from fedbary.settings.owners import methods

if TYPE_CHECKING:
    from fedbary.settings.config import Settings

Parameters = classification.Parameters

DATASETS = ("none", *modules("data/images", "read_sets"))

FILES = (".npz",)

UNUSED = (*classification.UNUSED, "target", "conformal", "conformal_score", "conformal_by")

USES = classification.USES

BEST_BY = {**classification.BEST_BY, "f1": max, "auroc": max}


def limits(settings: Settings) -> Iterator[tuple[str, bool, str]]:
    """Yield what has to fit."""
    yield from classification.limits(settings)
    softmax = f"another for task={settings.task}: it learns from the softmax of one class"
    one = "none: a set is of an example with one class"
    yield "conformal", settings.conformal == "none", one
    yield "method", not methods()[settings.method].needs_softmax, softmax
    bound = getattr(settings, "covariance", "none") == "shared"
    yield "covariance", not bound, "another: shared is a bound on one softmax"
