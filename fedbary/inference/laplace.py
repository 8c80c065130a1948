"""The mode of a convex last layer, by L-BFGS: it needs no step size, no epochs and no batches.

Point weights W of the last layer go to the minimum of

    n_k mean NLL(W) / κ + E(W)

with κ the run's kl_weight. E is the prior's negative log-density: a quadratic of any structure
(`fedbary.aggregation.covariance`), or that of N(0, std²). The network's other weights must be
frozen. Methods take the loss's curvature at the minimum.

Reference: Liu and Nocedal, On the limited memory BFGS method, 1989.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from scipy.optimize import minimize
from threadpoolctl import ThreadpoolController
from torch import Tensor

from fedbary.aggregation.covariance import Diagonal, Quadratic
from fedbary.errors import SettingError
from fedbary.inference import Local
from fedbary.inference._head import Head
from fedbary.parts.parameters import Checked, Positive

STEPS = 1000
"""Steps at most; some fifty are usual."""

TOLERANCE = 1e-6
"""The largest part of the loss's slope at the start that may be left of the slope at the end."""


@dataclass(frozen=True)
class Parameters(Checked):
    """Parameters that the mode depends on.

    Parameters
    ----------
    kl_weight
        κ, the weight of the prior beside n_k times the mean cross-entropy. share: n_k/n, the
        client's share of all examples.
    """

    kl_weight: Literal["share"] | Positive = 1.0


def fit(local: Local) -> dict[str, float]:
    """Bring the last layer to its mode, in place.

    Raises
    ------
    SettingError
        If the network is none of a convex last layer, or the prior is of Gaussian layers.
    """
    return settle(local, Head(local))


def settle(local: Local, head: Head) -> dict[str, float]:
    """Bring a layer to its mode, in place; return the mean NLL there."""
    start = head.weights
    energy = _quadratic(local, start).energy()
    power = 1 / local.training.kl_weight

    def value(flat: np.ndarray) -> tuple[float, np.ndarray]:
        weights = torch.from_numpy(flat).to(start).view_as(start)
        prior, pull = energy(weights)
        loss, slope = head.loss_and_gradient(weights)
        return float(power * loss + prior), (power * slope + pull).flatten().cpu().numpy()

    flat = start.flatten().cpu().numpy()
    near = TOLERANCE * max(1.0, float(np.abs(value(flat)[1]).max()))
    options = {"maxiter": STEPS, "maxfun": 2 * STEPS, "gtol": near, "ftol": 0.0, "maxcor": 20}
    with _blas_of_scipy().limit(limits=1):
        mode = minimize(value, flat, jac=True, method="L-BFGS-B", options=options).x
    head.weights = torch.from_numpy(mode).to(start).view_as(start)
    return {"train_nll": float(head.loss(head.weights)) / len(head.features)}


@cache
def _blas_of_scipy() -> Any:
    """Return the BLAS of SciPy's wheel: it forks threads for matrices of 20 rows, and they spin.

    The loss is PyTorch's, which has threads of its own.
    """
    return ThreadpoolController().select(prefix="libscipy_openblas")


def _quadratic(local: Local, like: Tensor) -> Quadratic:
    """Return the prior of a layer's weights."""
    if isinstance(local.prior, Quadratic):
        return local.prior
    if not isinstance(local.prior, float | int):
        raise SettingError("prior", "a posterior", "normal for inference=laplace")
    structure, zeros = Diagonal(*like.shape), torch.zeros_like(like)
    held = {"precision": zeros.flatten()}
    return Quadratic(structure, held, local.prior**-2, zeros, zeros)
