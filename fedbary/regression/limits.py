"""Which settings do not go together with a task, and what would."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedbary.config import Settings


def conflict(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield the settings that do not fit the others, each with what is allowed."""
    limits = _classification if settings.task == "classification" else _regression
    return ((setting, allowed) for setting, fits, allowed in limits(settings) if not fits)


def _classification(settings: Settings) -> Iterator[tuple[str, bool, str]]:
    fits = settings.model != "cnn" or settings.bayesian_layers <= 5
    yield "bayesian_layers", fits, "a whole number from 0 to 5, the layers of the CNN"
    yield "rule", settings.rule != "FedAG", "another rule, or task=regression"


def _regression(settings: Settings) -> Iterator[tuple[str, bool, str]]:
    yield "model", settings.model in ("mlp", "linear"), "mlp or linear for task=regression"
    yield "dataset", settings.dataset != "none", "a data set for task=regression"
    yield "partition", settings.partition in ("iid", "quantity"), "iid or quantity for regression"
    yield "holdout", settings.holdout == 0, "0 for regression: the server has the test rows"
    yield "ood_dataset", settings.ood_dataset == "none", "none for regression"
    clamped = settings.inference == "clamped_sgd"
    yield "inference", not clamped, "another local method: the CNN alone clamps log-variances"
    yield "device", settings.device != "cuda", "auto or cpu: regression is done on CPUs"
    layers = 2 if settings.model == "mlp" else 1
    yield "bayesian_layers", settings.bayesian_layers <= layers, f"at most {layers} of this model"
    points = settings.rule == "FedAG"
    if points:
        yield "bayesian_layers", settings.bayesian_layers == 0, "0 for FedAG, of point weights"
        yield "noise", settings.noise != "learned", "none, cross or a number for FedAG"
        yield "server_momentum", settings.server_momentum == 0, "0 for FedAG"
        yield "max_precision_ratio", settings.precision_bound is None, "none for FedAG"
    else:
        noise = settings.noise not in ("none", "cross")
        yield (
            "noise",
            noise,
            f"learned or a number for {settings.rule}; protocol=regression-vi sets all",
        )
        allowed = f"montecarlo or closed for {settings.rule}"
        yield "predictive", settings.predictive != "bootstrap", allowed
    closed = settings.predictive != "closed" or settings.model == "linear"
    yield "predictive", closed, "montecarlo, or bootstrap with FedAG, for a network"
