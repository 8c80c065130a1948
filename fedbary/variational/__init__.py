"""Gaussian layers, the conversion of a module's layers, their noise, and frozen parts."""

from fedbary.variational.conversion import gaussian_layers, variational
from fedbary.variational.frozen import frozen_config, keep_frozen, require_same_frozen
from fedbary.variational.noise import drawing

__all__ = [
    "drawing",
    "frozen_config",
    "gaussian_layers",
    "keep_frozen",
    "require_same_frozen",
    "variational",
]
