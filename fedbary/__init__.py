"""Bayesian federated learning: the server takes the barycentre of the clients' posteriors."""

from pathlib import Path

from fedbary.gaussian import Posterior

__version__ = "0.1.0"

__all__ = ["Posterior", "__version__"]

# `fedbary.strategies` lies in this package in the wheel, and beside it in a clone.
_clone = Path(__file__).resolve().parent.parent
if (_clone / "simulation.yaml").is_file():
    __path__.append(str(_clone))
