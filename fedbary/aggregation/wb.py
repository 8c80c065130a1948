"""WB, Wasserstein-2 barycentre: m = Σ w m_k, √v = Σ w √v_k (BA-BFL, eq. 8).

It is argmin_q Σ w_k W₂²(q, p_k).

It assumes nothing about the variances: they do not change the mean, which is FedAvg's.

Messages: the posterior, once each way: two numbers per Gaussian weight.

Cost: the server makes one pass over the replies, with one exponential per weight and client.

Use it to keep clients' variances without weighing means by them. This suits clients with few
examples or different tasks, whose precisions cannot be compared.

Reference: Jamoussi, Serra, Stavrou and Kountouris, Information-Geometric Barycenters for Bayesian
Federated Learning.
"""

from fedbary.aggregation.rule import Rule
from fedbary.gaussian import variance_power, wasserstein2_squared

RULE = Rule(
    "WB",
    forward=lambda mean, log_var: (mean, variance_power(log_var, 1 / 2)),
    inverse=lambda mean, std: (mean, 2 * std.log()),
    divergence=wasserstein2_squared,
)
