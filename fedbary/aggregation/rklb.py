"""RKLB, reverse-KL barycentre: 1/v = Σ w / v_k, m = v Σ w m_k / v_k (BA-BFL, eq. 7).

It is the product of the posteriors to the powers w_k, and argmin_q Σ w_k KL(q || p_k).

It assumes that a client's variances show how certain it is: client k counts by w_k/v_k in the mean.
If all clients have the same variance, the means are FedAvg's.

Messages: the posterior, once each way: two numbers per Gaussian weight.

Cost: the server makes one pass over the replies, with one exponential per weight and client.

Use it as the default. With `kl_weight=share` and posteriors that factorise, it is exactly the
posterior of all data. A client that sends tiny variances decides the aggregate. If clients may be
hostile, set a bound (`max_precision_ratio`).

Reference: Jamoussi, Serra, Stavrou and Kountouris, Information-Geometric Barycenters for Bayesian
Federated Learning.
"""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from fedbary.aggregation.rule import Rule
from fedbary.gaussian import kl_divergence, variance_power, variance_power_into


def forward(mean: Tensor, log_var: Tensor) -> tuple[Tensor, Tensor]:
    """Return the natural parameters (m / v, 1 / v)."""
    precision = variance_power(log_var, -1)
    return mean * precision, precision


def add(
    sums: Sequence[np.ndarray],
    mean: np.ndarray,
    log_var: np.ndarray,
    weight: float,
    spare: np.ndarray,
) -> None:
    """Add the weighted natural parameters to their sums; see `AddInPlace`."""
    shift, precision = sums
    variance_power_into(spare, log_var, -1)
    spare *= weight
    precision += spare
    spare *= mean
    shift += spare


RULE = Rule(
    "RKLB",
    forward,
    inverse=lambda shift, precision: (shift / precision, -precision.log()),
    add=add,
    divergence=kl_divergence,
)
