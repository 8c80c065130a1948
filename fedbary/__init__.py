"""Bayesian federated learning: the server takes the barycentre of the clients' posteriors."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedbary.figures.run_pictures import reliability_picture
    from fedbary.gaussian import Posterior
    from fedbary.predictive.any_network import forecast, predict
    from fedbary.scores.prediction import score
    from fedbary.trained import load

__version__ = "0.2.0"

__all__ = [
    "Posterior",
    "__version__",
    "forecast",
    "load",
    "predict",
    "reliability_picture",
    "score",
]

_LATER = {
    "Posterior": "gaussian",
    "forecast": "predictive.any_network",
    "load": "trained",
    "predict": "predictive.any_network",
    "reliability_picture": "figures.run_pictures",
    "score": "scores.prediction",
}
"""Names whose modules import PyTorch, which takes seconds; they are imported on first use."""

# `fedbary.strategies` and both apps lie in this package in the wheel, and beside it in a clone.
_clone = Path(__file__).resolve().parent.parent
if (_clone / "simulation.yaml").is_file():
    __path__.append(str(_clone))


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
