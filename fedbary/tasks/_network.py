"""The network that the settings name, on its device."""

from __future__ import annotations

from torch import nn

from fedbary.device import torch_device
from fedbary.inference import prepare
from fedbary.models import build
from fedbary.settings.config import Settings


def network(settings: Settings, shape: tuple[int, ...], outputs: int, seed: int) -> nn.Module:
    """Return the network for inputs of a shape, initialised from a seed.

    Its variances are initialised as the local method asks.
    """
    model = build(
        settings.model,
        shape,
        outputs,
        seed,
        settings.bayesian_layers,
        settings.init_log_var,
        settings.model_dump(),
    )
    prepare(settings.inference, model)
    return model.to(torch_device(settings))
