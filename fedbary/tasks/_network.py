"""The network that the settings name, on its device."""

from __future__ import annotations

from torch import nn

from fedbary.inference import PosteriorParameters, prepare
from fedbary.models import build
from fedbary.parts.parameters import told
from fedbary.parts.registry import is_factory
from fedbary.settings.config import Settings
from fedbary.settings.device import torch_device
from fedbary.tasks._trial import require_usable

_TRIED: set[tuple[str, tuple[int, ...], tuple[int, ...], int]] = set()


def network(
    settings: Settings,
    shape: tuple[int, ...],
    outputs: int,
    seed: int,
    answer: tuple[int, ...] = (),
) -> nn.Module:
    """Return the network for inputs of a shape, initialised from a seed.

    Its variances are initialised as the local method asks. A user's own network is tried once per
    process. Its outputs have the shape (batch, outputs), or (batch, *answer).
    """
    answer = answer or (outputs,)
    model = build(
        settings.model,
        shape,
        outputs,
        seed,
        settings.bayesian_layers,
        told(PosteriorParameters, settings).init_log_var,
        settings.model_dump(),
        answer,
    )
    return as_it_trains(settings, model, shape, answer)


def as_it_trains(
    settings: Settings, model: nn.Module, shape: tuple[int, ...], answer: tuple[int, ...]
) -> nn.Module:
    """Return a fresh network on the device, as the local method asks; a user's own is tried."""
    prepare(settings.inference, model)
    model = model.to(torch_device(settings))
    tried = settings.model, shape, answer, settings.bayesian_layers
    if is_factory(settings.model) and tried not in _TRIED:
        require_usable(settings.model, model, shape, answer)
        _TRIED.add(tried)
    return model
