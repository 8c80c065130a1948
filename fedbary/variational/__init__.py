"""Gaussian layers, the conversion of a module's layers, their noise, and frozen parts."""

from fedbary.variational.frozen import frozen_config, keep_frozen, require_same_frozen
from fedbary.variational.layers import drawing, gaussian_layers, variational

__all__ = [
    "drawing",
    "frozen_config",
    "gaussian_layers",
    "keep_frozen",
    "require_same_frozen",
    "variational",
]
