"""A diagonal Gaussian around a global model of point weights: in the state, for predictions."""

from __future__ import annotations

from torch import Tensor

from fedbary.gaussian import Posterior
from fedbary.methods.shared.method import Tensors
from fedbary.predictive import Predictive

LOG_VARS = "log_var/"
"""The prefix of log-variances' keys, in a method's state and in replies."""

MOST = 40.0
"""The largest magnitude of a log-variance, as strategies admit them."""


def log_vars_of(tensors: Tensors) -> dict[str, Tensor]:
    """Return the log-variances by the names of the weights, held to ±`MOST`."""
    return {
        name.removeprefix(LOG_VARS): tensor.clamp(-MOST, MOST)
        for name, tensor in tensors.items()
        if name.startswith(LOG_VARS)
    }


def named(log_vars: Tensors) -> dict[str, Tensor]:
    """Return log-variances under the keys of the state, held to ±`MOST`."""
    return {LOG_VARS + name: tensor.clamp(-MOST, MOST) for name, tensor in log_vars.items()}


def predictive(model: Tensors, state: Tensors) -> Predictive:
    """Return the model and the Gaussian around it; points before the first round."""
    return Predictive(model, Posterior(model, log_vars_of(state)))
