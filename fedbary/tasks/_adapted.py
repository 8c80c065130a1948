"""The network of a run with adapters: a pretrained one, whose adapters train with the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from torch import nn

from fedbary.backbones import Backbone
from fedbary.backbones._adapted import (
    Adapted,
    adapted,
    require_adapters_called,
    with_gaussians,
)
from fedbary.models import build
from fedbary.seeds import derive_seed
from fedbary.settings.config import Settings
from fedbary.settings.device import torch_device
from fedbary.settings.task_words import OfAdapters, OfFeatures
from fedbary.tasks._network import as_it_trains
from fedbary.tasks._values import Condition, Outcome
from fedbary.variational.adapters import Adapters
from fedbary.variational.frozen import keep_frozen

AT_ONCE = 64
"""Images that networks answer at a time."""

_TRIED: set[tuple[Backbone, Adapters, tuple[int, ...]]] = set()


def has_adapters(settings: Settings) -> bool:
    """Say whether adapters of the backbone train, in place of a model on its features."""
    own = settings.of_task(OfFeatures)
    return own.backbone != "none" and settings.of_task(OfAdapters).adapters != "none"


def on_backbone(settings: Settings) -> Iterator[Condition]:
    """Yield conditions on the settings of features and of adapters."""
    own = settings.of_task(OfFeatures)
    if has_adapters(settings):
        fits = "none for inference=laplace, which fits the last layer alone"
        yield "adapters", settings.inference != "laplace", fits
        yield "normalise", own.normalise == "none", "none with adapters: the backbone has its own"
        yield "features", own.features == "all", "all with adapters, which change the features"
    standard = own.features == "all" or own.normalise == "channels"
    yield "features", standard, "all for normalise=none: components are of standardised features"


def adapted_network(
    settings: Settings, backbone: Backbone, shape: tuple[int, ...], outputs: int, seed: int
) -> nn.Module:
    """Return a backbone with adapters and a head, initialised from a seed.

    Parameters
    ----------
    settings
        They name the adapters, the head, and the number of Gaussian layers.
    backbone
        Stays as it is.
    shape
        Shape of an image.
    outputs
        Number of outputs.
    seed
        Seed of the head's weights; the seed of the adapters' A is derived from it.

    Raises
    ------
    SettingError
        If the adapters do not fit the backbone, or it does not take such images.
    """
    own = settings.of_task(OfAdapters)
    head = build(
        settings.model, (_width(backbone, shape),), outputs, seed, parameters=settings.model_dump()
    )
    how = Adapters(own.rank, own.targets, own.lora_alpha)
    network = adapted(backbone, head, how, derive_seed(seed, "adapters"))
    network.to(torch_device(settings))  # the body is there
    if (backbone, how, shape) not in _TRIED:
        require_adapters_called(network, shape)
        _TRIED.add((backbone, how, shape))
    init_log_var = settings.local.init_log_var
    network = with_gaussians(network, settings.bayesian_layers, init_log_var)
    return as_it_trains(settings, keep_frozen(network), shape, (outputs,))


def merge_shared_adapters(outcome: Outcome) -> Outcome:
    """Return an outcome with its adapters merged, if all networks that predict share these."""
    model = outcome.model
    drawn = any(name.startswith("body.") for name in outcome.predictive.posterior.log_var)
    if not isinstance(model, Adapted) or outcome.predictive.members or drawn:
        return outcome
    return replace(outcome, model=model.merged())


@lru_cache(maxsize=16)
def _width(backbone: Backbone, shape: tuple[int, ...]) -> int:
    """Return the number of features of images of a shape, asked once per process."""
    return backbone.width(shape)
