"""FedAG: the clients' point weights are the posterior (FedAvg-Gaussian).

Reference: A. T. Thorgeirsson and F. Gauterin, Probabilistic Predictions with Federated Learning,
Entropy 2021, 23, 41.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedbary.aggregation.sums import normalised
from fedbary.errors import SettingError
from fedbary.gaussian import Posterior

ESTIMATORS = ("sample", "population")
"""What a weight's variance may be, see `fit_gaussian`; the paper leaves it open."""

MIN_LOG_VAR = -40.0
"""Log-variance of a weight in which no client differs, the least that strategies admit."""


def stacked(networks: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Stack networks: by name, (K, *shape), in the order given."""
    return {name: torch.stack([network[name] for network in networks]) for name in networks[0]}


def fit_gaussian(
    networks: Mapping[str, Tensor],
    weights: Sequence[float] | None = None,
    estimator: str = "sample",
) -> Posterior:
    """Fit a Gaussian per weight over the clients' networks (FedAG, Algorithm 1).

    With p_k = w_k / Σ w the mean is m = Σ p_k w_k, and the variance, by `estimator`,

    - ``population``: s² = Σ p_k (w_k − m)², the spread of these clients; FKLB's of point masses;
    - ``sample``: s² / (1 − Σ p_k²), unbiased for the spread of those these are drawn from.

    Sums run in float64. A weight in which no client differs, or that only one holds, has
    log-variance −40.

    Parameters
    ----------
    networks
        Floating tensors by name, stacked over the K clients: (K, *shape).
    weights
        One per client, none negative, not all 0; by default equal ones, as in the paper.
    estimator
        One of `ESTIMATORS`.

    Returns
    -------
    Posterior
        A Gaussian for every tensor, of the networks' dtypes; it does not depend on the order of
        the clients beyond rounding.

    Raises
    ------
    SettingError
        If the estimator is unknown, or the weights do not fit the clients.
    """
    if estimator not in ESTIMATORS:
        raise SettingError("estimator", estimator, ", ".join(ESTIMATORS))
    clients = len(next(iter(networks.values())))
    shares = normalised([1.0] * clients if weights is None else weights)
    if len(shares) != clients:
        raise SettingError("weights", list(shares), f"one per client; there are {clients}")
    divisor = 1.0
    if estimator == "sample" and max(shares) < 1:
        divisor -= math.fsum(share**2 for share in shares)
    means, log_vars = {}, {}
    for name, tensor in networks.items():
        p = torch.tensor(shares, dtype=torch.float64).view(-1, *[1] * (tensor.ndim - 1))
        values = tensor.double()
        mean = (p * values).sum(0)
        var = (p * (values - mean).square()).sum(0) / divisor
        means[name] = mean.to(tensor.dtype)
        log_vars[name] = var.log().clamp_min(MIN_LOG_VAR).to(tensor.dtype)
    return Posterior(means, log_vars)
