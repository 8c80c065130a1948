"""Norms whose weights are frozen keep their running statistics, whatever mode a network is in."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase


class _Kept(_NormBase):
    """A norm that stays in evaluation mode."""

    def train(self, mode: bool = True) -> Any:
        """Stay in evaluation mode."""
        return super().train(False)


def keep_statistics(network: nn.Module) -> None:
    """Let every norm of a network whose weights are frozen stay in evaluation mode.

    In training mode a batch norm would go on moving its running mean and variance, and a
    pretrained network would no longer be the pretrained one.
    """
    for layer in network.modules():
        weights = list(layer.parameters(recurse=False))
        if isinstance(layer, _NormBase) and weights and not any(w.requires_grad for w in weights):
            layer.__class__ = type(type(layer).__name__, (_Kept, type(layer)), {})
            layer.eval()
