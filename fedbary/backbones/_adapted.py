"""A pretrained network whose adapters train with a head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fedbary.backbones._body import Backbone, Transform, pooled
from fedbary.errors import SettingError
from fedbary.variational.adapters import (
    Adapters,
    adapter_names,
    gaussian_adapters,
    merged,
    with_adapters,
)
from fedbary.variational.layers import convertible_layers, gaussian_layers, variational


class Adapted(nn.Module):
    """Passes images (N, C, H, W) through an adapted body and a head.

    The body is in evaluation mode, also while its adapters train: its norms keep their statistics,
    and its dropout passes everything on.

    Parameters
    ----------
    transform
        Transformation of images before the body.
    body, head
        Networks; the body answers as a `Backbone`'s does.
    """

    def __init__(self, transform: Transform, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self._transform = transform
        self.body, self.head = body.eval(), head

    def forward(self, images: Tensor) -> Tensor:
        """Return the head's answer (N, outputs)."""
        answer: Tensor = self.head(self.features(images))
        return answer

    def features(self, images: Tensor) -> Tensor:
        """Return the head's inputs, (N, D)."""
        return pooled(self.body(self._transform(images)))

    def trunk_and_head(self) -> tuple[Callable[[Tensor], Tensor] | None, nn.Module]:
        """Return the feature extractor and the head, if no adapter is Gaussian."""
        return (None, self) if gaussian_layers(self.body) else (self.features, self.head)

    def train(self, mode: bool = True) -> Any:
        """Set the head's mode; the body stays in evaluation mode."""
        super().train(mode)
        self.body.eval()
        return self

    def merged(self) -> Adapted:
        """Return the same network with W + ΔW in place of the adapters, if none is Gaussian."""
        if gaussian_layers(self.body):
            return self
        found: Adapted = Adapted(self._transform, merged(self.body), self.head).train(self.training)
        return found


def adapted(backbone: Backbone, head: nn.Module, how: Adapters, seed: int) -> Adapted:
    """Return a backbone with adapters before a head; the A are drawn from a seed.

    Raises
    ------
    SettingError
        If the adapters do not fit.
    """
    return Adapted(backbone.transform, with_adapters(backbone.body, how, seed), head)


def with_gaussians(network: Adapted, bayesian_layers: int, init_log_var: float) -> Adapted:
    """Return a network in which the last of the layers that train have Gaussian weights.

    They are counted over the adapters, in the network's order, and then the head's layers.

    Raises
    ------
    SettingError
        If there are fewer.
    """
    adapters, in_head = len(adapter_names(network.body)), len(convertible_layers(network.head))
    if bayesian_layers not in range(adapters + in_head + 1):
        of = f"the {adapters} adapters and the head's {in_head}"
        allowed = f"a whole number from 0 to {adapters + in_head}: layers of {of}"
        raise SettingError("bayesian_layers", bayesian_layers, allowed)
    of_head = min(bayesian_layers, in_head)
    network.head = variational(network.head, of_head, init_log_var=init_log_var)
    gaussian_adapters(network.body, bayesian_layers - of_head, init_log_var)
    return network


def require_adapters_called(network: Adapted, shape: tuple[int, ...]) -> None:
    """Raise a SettingError if a body answers an image of a shape without asking an adapter."""
    asked: set[str] = set()

    def marks(name: str) -> Callable[..., None]:
        return lambda *_: asked.add(name)

    names = adapter_names(network.body)
    hooks = [network.body.get_submodule(name).register_forward_hook(marks(name)) for name in names]
    try:
        with torch.inference_mode():
            network(torch.zeros(1, *shape, device=next(network.parameters()).device))
    finally:
        for hook in hooks:
            hook.remove()
    if unasked := [name for name in names if name not in asked]:
        allowed = f"layers that the backbone calls: it reads the weights of {', '.join(unasked)}"
        raise SettingError("targets", unasked[0], allowed)
