"""Which settings a classification of images takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fedbary.settings.registry import modules

if TYPE_CHECKING:
    from fedbary.settings.config import Settings

DATASETS = ("none", *modules("data/images"))

FILES = (".npz",)

UNUSED = ("target", "split", "noise", "predictive", "class_weights", "specificity")

USES = "classes, input_shape, augment, ood_dataset, ece_bins"


def limits(settings: Settings) -> Iterator[tuple[str, bool, str]]:
    """Yield what has to fit."""
    fits = settings.model != "cnn" or settings.bayesian_layers <= 5
    yield "bayesian_layers", fits, "a whole number from 0 to 5, the layers of the CNN"
    yield "rule", settings.rule != "FedAG", "another rule, or task=regression"
    yield "class_weights", settings.class_weights == "none", "none, or balanced for task=tables"
