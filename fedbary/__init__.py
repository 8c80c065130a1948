"""Bayesian federated learning: the server takes the barycentre of the clients' posteriors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedbary.gaussian import Posterior
    from fedbary.trained import load

__version__ = "0.1.0"

__all__ = ["Posterior", "__version__", "load"]

# `fedbary.strategies` lies in this package in the wheel, and beside it in a clone.
_clone = Path(__file__).resolve().parent.parent
if (_clone / "simulation.yaml").is_file():
    __path__.append(str(_clone))


def __getattr__(name: str) -> object:
    """Import PyTorch, which takes seconds, only for who needs it."""
    if name == "Posterior":
        from fedbary.gaussian import Posterior

        return Posterior
    if name == "load":
        from fedbary.trained import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
