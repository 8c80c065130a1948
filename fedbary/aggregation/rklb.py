"""RKLB, reverse-KL barycentre: 1/v = Σ w / v_k, m = v Σ w m_k / v_k (BA-BFL, eq. 7).

The product of the posteriors to the powers w_k, and argmin_q Σ w_k KL(q || p_k).
"""

from torch import Tensor

from fedbary.aggregation.rule import Rule
from fedbary.gaussian import variance_power


def forward(mean: Tensor, log_var: Tensor) -> tuple[Tensor, Tensor]:
    """Return the natural parameters (m / v, 1 / v)."""
    precision = variance_power(log_var, -1)
    return mean * precision, precision


RULE = Rule(
    "RKLB",
    forward,
    inverse=lambda shift, precision: (shift / precision, -precision.log()),
)
