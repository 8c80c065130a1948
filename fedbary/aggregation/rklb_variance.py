"""RKLBVariance, WB's mean with RKLB's variance: m = Σ w m_k, 1/v = Σ w / v_k.

It is no barycentre: beside RKLB and WB it tells what of their difference comes of the variance.

It assumes of the variances that they say how sure a client is, as RKLB does; of the means
nothing, as WB.

Messages: the posterior, once each way: two numbers per Gaussian weight.

Cost: the server goes once over the replies, with one exponential per weight and client.

Use it in experiments, beside `RKLBMean`, RKLB and WB; nothing speaks for it where one of those two
will do.

Reference: this project; the rules that it joins are BA-BFL's, eqs. 7 and 8.
"""

from fedbary.aggregation.rule import Rule
from fedbary.gaussian import variance_power

RULE = Rule(
    "RKLBVariance",
    forward=lambda mean, log_var: (mean, variance_power(log_var, -1)),
    inverse=lambda mean, precision: (mean, -precision.log()),
)
