"""Settings of a regression."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fedbary.parts.parameters import told
from fedbary.parts.registry import modules
from fedbary.settings.task_words import OfNumbers

if TYPE_CHECKING:
    from fedbary.settings.config import Settings


DATASETS = modules("data/tables", "read")

FILES = ("",)

OF_CLASSES = ("DirichletPartitioner", "PathologicalPartitioner", "ShardPartitioner")
"""Partitioners of flwr-datasets that deal classes."""

Parameters = OfNumbers

TAKES = ()

BEST_BY = {"nll": min, "rmse": min, "crps": min}


def limits(settings: Settings) -> Iterator[tuple[str, bool, str]]:
    """Yield the conditions."""
    yield "model", settings.model in ("mlp", "linear"), "mlp or linear for task=regression"
    yield "dataset", settings.dataset != "none", "a data set for task=regression"
    of_classes = settings.partition in ("dirichlet", "classes", *OF_CLASSES)
    yield "partition", not of_classes, "iid, quantity or ContinuousPartitioner for regression"
    own = told(OfNumbers, settings)
    scored = settings.holdout == 0 or own.conformal is not None
    yield "holdout", scored, "0 for regression without conformal: the server has the test rows"
    yield "projection", settings.projection == "none", "none for regression"
    yield "backbone", settings.backbone == "none", "none for regression"
    yield "test_dataset", settings.test_dataset == "none", "none for regression"
    yield "ood_dataset", settings.ood_dataset == "none", "none for regression"
    clamped = settings.inference == "clamped_sgd"
    yield "inference", not clamped, "another local method: only the CNN clamps log-variances"
    yield "device", settings.device != "cuda", "auto or cpu: regression is done on CPUs"
    name, noise = settings.strategy, own.noise
    if settings.trains_on_squares:
        yield "noise", noise != "learned", f"none, cross or a number for {name}"
    else:
        also = "protocol=regression-vi sets all that variational posteriors need"
        yield "noise", noise not in ("none", "cross"), f"learned or a number for {name}; {also}"
    product = settings.predictive not in ("product", "dropout")
    yield "predictive", product, "auto, montecarlo, members or closed for regression"
    closed = settings.predictive != "closed" or settings.model == "linear"
    yield "predictive", closed, "auto, montecarlo or members for a network"
