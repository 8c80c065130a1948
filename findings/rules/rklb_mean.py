"""RKLBMean, RKLB's mean with WB's variance: m = Σ w m_k / v_k / Σ w / v_k, √v = Σ w √v_k.

It is not a barycentre. It shows which part of the difference between RKLB and WB comes from the
mean.

It assumes that a client's variances show how certain it is, as RKLB does, but uses that only for
the means.

Messages: the posterior, once each way: two numbers per Gaussian weight.

Cost: the server makes one pass over the replies, with two exponentials per weight and client.

`rule=findings.rules.rklb_mean:RULE` runs it, with the repository in `PYTHONPATH`.

Reference: this project; the rules that it joins are BA-BFL's, eqs. 7 and 8.
"""

from torch import Tensor

from fedbary.aggregation.rules import Rule
from fedbary.gaussian import variance_power


def forward(mean: Tensor, log_var: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return (m / v, 1 / v, √v)."""
    precision = variance_power(log_var, -1)
    return mean * precision, precision, variance_power(log_var, 1 / 2)


RULE = Rule(
    "RKLBMean",
    forward,
    inverse=lambda shift, precision, std: (shift / precision, 2 * std.log()),
    powers=(1, 1, 1),
)
