"""Gaussian layers, the conversion of a module's layers, and where their noise comes from."""

from fedbary.variational.conversion import gaussian_layers, variational
from fedbary.variational.noise import drawing

__all__ = ["drawing", "gaussian_layers", "variational"]
