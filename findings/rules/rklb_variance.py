"""RKLBVariance, WB's mean with RKLB's variance: m = Σ w m_k, 1/v = Σ w / v_k.

It is not a barycentre. It shows which part of the difference between RKLB and WB comes from the
variance.

It assumes that a client's variances show how certain it is, as RKLB does, but uses that only for
the variances.

Messages: the posterior, once each way: two numbers per Gaussian weight.

Cost: the server makes one pass over the replies, with one exponential per weight and client.

`rule=findings.rules.rklb_variance:RULE` runs it, with the repository in `PYTHONPATH`.

Reference: this project; the rules that it joins are BA-BFL's, eqs. 7 and 8.
"""

from fedbary.aggregation.rules import Rule
from fedbary.gaussian import variance_power

RULE = Rule(
    "RKLBVariance",
    forward=lambda mean, log_var: (mean, variance_power(log_var, -1)),
    inverse=lambda mean, precision: (mean, -precision.log()),
)
