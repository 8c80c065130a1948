"""RKLBMean, RKLB's mean with WB's variance: m = Σ w m_k / v_k / Σ w / v_k, √v = Σ w √v_k.

It is no barycentre: beside RKLB and WB it tells what of their difference comes of the mean.

It assumes of the means variances that say how sure a client is, as RKLB does; of the variances
nothing, as WB.

Messages: the posterior, once each way: two numbers per Gaussian weight.

Cost: the server goes once over the replies, with two exponentials per weight and client.

Use it in experiments, beside `RKLBVariance`, RKLB and WB; nothing speaks for it where one of those
two will do.

Reference: this project; the rules that it joins are BA-BFL's, eqs. 7 and 8.
"""

from torch import Tensor

from fedbary.aggregation.rule import Rule
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
