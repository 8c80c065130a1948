"""EAA, empirical arithmetic average: m = Σ w m_k, v = Σ w v_k.

Its variance is the largest among the rules whose variances are means: RKLB ≤ AALV ≤ WB ≤ EAA.

It assumes nothing about the variances: they do not change the mean, which is FedAvg's.

Messages: the posterior, once each way: two numbers per Gaussian weight.

Cost: the server makes one pass over the replies, with one exponential per weight and client.

Use it if a single client with small variances must not give the aggregate small variances.

Reference: Ozer et al., How to Combine Variational Bayesian Networks in Federated Learning (FVBA),
2022.
"""

from fedbary.aggregation.rule import Rule
from fedbary.gaussian import variance_power

RULE = Rule(
    "EAA",
    forward=lambda mean, log_var: (mean, variance_power(log_var, 1)),
    inverse=lambda mean, var: (mean, var.log()),
)
